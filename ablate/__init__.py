"""ablate: which architecture changes help a language model, by how much, at what cost, and how
sure are we?
"""

__version__ = "0.1.0"
