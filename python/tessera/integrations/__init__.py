"""Other libraries with this one's kernels inside; each module imports its library."""
