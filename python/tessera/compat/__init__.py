"""Drop-ins: modules with the names, arguments and results of other attention packages, run by this library's kernels.

    import tessera.compat.flash_attn as flash_attn                      # FlashAttention-2
    import tessera.compat.flash_attn_interface as flash_attn_interface  # FlashAttention-3

They need PyTorch, run on the CPU too, and take every dtype that the kernels take. What a package offers and these
kernels lack (dropout, mostly) raises NotImplementedError with the reason.
"""
