"""oneDNN's attention from Python: MatMul, Multiply, SoftMax, MatMul as one partition of its Graph API, through ctypes.

Unless a path is given, the library is looked for where PyPI's wheel `onednn` puts it (sys.prefix/lib, a build on SYCL
whose runtimes lie beside it), in the wheel `paddlepaddle` (a build on OpenMP alone, one file), in libtorch_cpu (which
hides it at the time of writing) and under the loader's name. The wheel `onednn-cpu-gomp` is 3.2, which fuses no bf16
attention. Source of the numbers below: oneDNN's dnnl_common_types.h and dnnl_graph_types.h; they belong to its ABI.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import sys
from ctypes import POINTER, byref, c_int, c_int64, c_size_t, c_uint8, c_void_p
from pathlib import Path

F16, BF16, F32 = 1, 2, 3
_CPU, _IN_ORDER, _FUSION = 1, 1, 1
_MATMUL, _MULTIPLY, _SOFTMAX = 39, 46, 64
_ATTR_AXIS, _ATTR_TRANSPOSE_B = 0x30, 0x66
_STRIDED, _VARIABLE = 2, 1
_DIMS = c_int64 * 12


class Refused(Exception):
    """oneDNN is not here, or does not take the problem: the reason in words."""


class _LogicalTensor(ctypes.Structure):
    _fields_ = [
        ("id", c_size_t),
        ("ndims", c_int),
        ("dims", _DIMS),
        ("data_type", c_int),
        ("property", c_int),
        ("layout_type", c_int),
        ("strides", _DIMS),
    ]


class _Version(ctypes.Structure):
    _fields_ = [("major", c_int), ("minor", c_int), ("patch", c_int)]


def _load(path: str) -> ctypes.CDLL:
    """The library at a path, and first whatever it needs that lies beside it: wheels set no run path."""
    folder = Path(path).parent
    opencl = folder / "libintelocl.so"
    if opencl.exists():  # the CPU as a SYCL device, for a oneDNN built on SYCL
        os.environ.setdefault("OCL_ICD_FILENAMES", str(opencl))
    for _ in range(64):
        try:
            return ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
        except OSError as error:
            missing = re.match(r"(\S+): cannot open shared object file", str(error))
            beside = folder / missing[1] if missing else folder
            if not beside.is_file() or str(beside) == path:
                raise
            _load(str(beside))
    raise OSError(f"{path}: its dependencies do not end")


def _candidates(path: str | None) -> list[str]:
    if path:
        return [path]
    found = [str(Path(sys.prefix) / "lib" / "libdnnl.so.3")]
    for package, inside in (("paddle", "libs/libdnnl.so.3"), ("torch", "lib/libtorch_cpu.so")):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin:
            found.append(str(Path(spec.origin).parent / inside))
    return [p for p in found if os.path.exists(p)] + ["libdnnl.so.3"]


class Library:
    """A loaded oneDNN with its Graph API, one CPU engine and stream. `where`: the file, `version`: "3.2.0"."""

    def __init__(self, path: str | None = None):
        reasons = []
        for name in _candidates(path):
            try:
                lib = _load(name)
                _ = lib.dnnl_graph_graph_create  # absent from builds without the Graph API, or hidden
            except (OSError, AttributeError) as error:
                reasons.append(f"{os.path.basename(name)}: {str(error).splitlines()[0]}")
                continue
            self.lib, self.where = lib, name
            break
        else:
            raise Refused("; ".join(reasons))
        lib.dnnl_version.restype = POINTER(_Version)
        v = lib.dnnl_version().contents
        self.version = f"{v.major}.{v.minor}.{v.patch}"
        self.engine, self.stream = c_void_p(), c_void_p()
        self.call("dnnl_engine_create", byref(self.engine), c_int(_CPU), c_size_t(0))
        self.call("dnnl_stream_create", byref(self.stream), self.engine, c_int(_IN_ORDER))

    def call(self, name: str, *arguments) -> None:
        code = getattr(self.lib, name)(*arguments)
        if code:
            raise Refused(f"{name} gives status {code}")


def _tensor(number: int, dtype: int, dims: tuple[int, ...], strides: tuple[int, ...] | None = None) -> _LogicalTensor:
    if strides is None:
        strides = tuple(_product(dims[i + 1 :]) for i in range(len(dims)))
    return _LogicalTensor(number, len(dims), _DIMS(*dims), dtype, _VARIABLE, _STRIDED, _DIMS(*strides))


def _product(numbers) -> int:
    result = 1
    for n in numbers:
        result *= n
    return result


class Attention:
    """softmax(scale * q k^T) v for q, o [batch, heads, seqlen_q, dim] and k, v [batch, heads, seqlen_k, dim] of one
    dtype, each with its own strides in elements. Scores and probabilities are of `inner` (F32, or the dtype).

    Refused: no single partition holds the four operations, or it does not compile. `fused` says that one does.
    """

    def __init__(self, library: Library, dtype: int, q, k, v, o, scale: float, inner: int):
        """q, k, v, o: (shape, strides)."""
        self.library = library
        lib = library.lib
        b, h, sq, _ = q[0]
        square = (b, h, sq, k[0][2])
        self.given = [_tensor(i, dtype, *x) for i, x in enumerate((q, k, v))]
        factor = _tensor(3, F32 if inner == F32 else dtype, (1,))
        self._factor_bits = self._encode(scale, factor.data_type)
        out = _tensor(4, dtype, *o)
        scores, scaled = _tensor(5, inner, square), _tensor(6, inner, square)
        probs = _tensor(7, dtype, square)
        graph = c_void_p()
        library.call("dnnl_graph_graph_create", byref(graph), c_int(_CPU))
        operations = (
            (_MATMUL, (self.given[0], self.given[1]), scores),
            (_MULTIPLY, (scores, factor), scaled),
            (_SOFTMAX, (scaled,), probs),
            (_MATMUL, (probs, self.given[2]), out),
        )
        for number, (kind, inputs, output) in enumerate(operations):
            op = c_void_p()
            library.call("dnnl_graph_op_create", byref(op), c_size_t(number), c_int(kind), b"op%d" % number)
            for one in inputs:
                library.call("dnnl_graph_op_add_input", op, byref(one))
            library.call("dnnl_graph_op_add_output", op, byref(output))
            if number == 0:
                library.call(
                    "dnnl_graph_op_set_attr_bool", op, c_int(_ATTR_TRANSPOSE_B), byref(c_uint8(1)), c_size_t(1)
                )
            if kind == _SOFTMAX:
                library.call("dnnl_graph_op_set_attr_s64", op, c_int(_ATTR_AXIS), byref(c_int64(-1)), c_size_t(1))
            library.call("dnnl_graph_add_op", graph, op)
        library.call("dnnl_graph_graph_finalize", graph)
        library.call("dnnl_graph_graph_filter", graph, c_int(_FUSION))
        count = c_size_t()
        library.call("dnnl_graph_graph_get_partition_num", graph, byref(count))
        if count.value != 1:
            raise Refused(f"the graph falls into {count.value} partitions, not one fused")
        partition = (c_void_p * 1)()
        library.call("dnnl_graph_graph_get_partitions", graph, c_size_t(1), partition)
        supported = c_uint8()
        library.call("dnnl_graph_partition_is_supported", c_void_p(partition[0]), byref(supported))
        if not supported.value:
            raise Refused("the partition is not supported on this CPU")
        self._order, self.out = self._ports(c_void_p(partition[0]), factor), out
        self.compiled = c_void_p()
        library.call("dnnl_graph_compiled_partition_create", byref(self.compiled), c_void_p(partition[0]))
        inputs = (POINTER(_LogicalTensor) * 4)(*(ctypes.pointer(x) for x in self._order))
        outputs = (POINTER(_LogicalTensor) * 1)(ctypes.pointer(out))
        library.call(
            "dnnl_graph_partition_compile",
            c_void_p(partition[0]),
            self.compiled,
            c_size_t(4),
            inputs,
            c_size_t(1),
            outputs,
            library.engine,
        )
        self._execute = lib.dnnl_graph_compiled_partition_execute

    @staticmethod
    def _encode(value: float, dtype: int):
        import torch

        kind = {F16: torch.float16, BF16: torch.bfloat16, F32: torch.float32}[dtype]
        return torch.tensor([value], dtype=kind)

    def _ports(self, partition: c_void_p, factor: _LogicalTensor) -> list[_LogicalTensor]:
        """The inputs in the order that the partition wants them."""
        ports = (_LogicalTensor * 4)()
        self.library.call("dnnl_graph_partition_get_input_ports", partition, c_size_t(4), ports)
        mine = {x.id: x for x in (*self.given, factor)}
        return [mine[port.id] for port in ports]

    def bind(self, q: int, k: int, v: int, o: int):
        """A callable that runs on these addresses."""
        addresses = {0: q, 1: k, 2: v, 3: self._factor_bits.data_ptr()}
        tensors = []
        for logical, address in [(x, addresses[x.id]) for x in self._order] + [(self.out, o)]:
            tensor = c_void_p()
            self.library.call(
                "dnnl_graph_tensor_create", byref(tensor), byref(logical), self.library.engine, c_void_p(address)
            )
            tensors.append(tensor)
        inputs, outputs = (c_void_p * 4)(*(t.value for t in tensors[:4])), (c_void_p * 1)(tensors[4].value)
        stream, compiled, execute, wait = (
            self.library.stream,
            self.compiled,
            self._execute,
            self.library.lib.dnnl_stream_wait,
        )

        def run() -> None:
            code = execute(compiled, stream, c_size_t(4), inputs, c_size_t(1), outputs) or wait(stream)
            if code:
                raise Refused(f"executing gives status {code}")

        return run
