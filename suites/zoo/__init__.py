"""Small models with random weights, and inputs for them."""

from suites.zoo.torchvision_operators import define_missing_operators

define_missing_operators()  # before transformers looks for torchvision
