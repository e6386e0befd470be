"""python -m tessera: versions, devices and kernels of this installation."""

import platform
import sys

import tessera


def main() -> int:
    print(f"tessera {tessera.__version__} ({tessera.library_path})")
    print(f"python {platform.python_version()} on {platform.platform()}")
    for name in ("numpy", "torch", "jax", "cupy"):
        try:
            module = __import__(name)
        except ImportError:
            print(f"{name} not installed")
        else:
            print(f"{name} {module.__version__}")
    print()
    print(tessera.devices().rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
