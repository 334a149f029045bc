"""What fusion.py's peers build by themselves; millrace has it as flags there."""

MLPS = {"mlp": (64, 3, 16), "mlp-narrow": (32, 3, 8), "mlp-tiny": (16, 3, 4), "mlp-wide": (256, 4, 32)}  # width, depth, microbatch
