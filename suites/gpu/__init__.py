"""What can be known of GPU kernels without a GPU."""
