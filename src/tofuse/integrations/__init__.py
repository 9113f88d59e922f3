"""One module for each framework that does not take a name of a backend: import it by name.

`import tofuse` imports none of them, and no framework.
"""
