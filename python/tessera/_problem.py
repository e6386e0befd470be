"""Problems and plans: the numbers of a call, and the kernel chosen for them."""

from __future__ import annotations

import ctypes
import json as _json
import threading
from typing import Any

from . import _c, _which
from ._arrays import DTYPE_BYTES, DTYPE_NAMES, I32, View, contiguous, nothing, view
from ._errors import failure, status_failure

_lib = _c.lib
_KEPT_WORKSPACE_BYTES = 64 << 20  # a thread keeps its workspace between runs up to this size


def _read_text(call, *arguments) -> str:
    """The text of a C function that returns its length as snprintf does."""
    capacity = 4096
    while True:
        buffer = ctypes.create_string_buffer(capacity)
        length = call(*arguments, buffer, capacity)
        if length < capacity:
            return buffer.value.decode("utf-8", "replace")
        capacity = length + 1


def set_field(struct: ctypes.Structure, field: str, value: Any, name: str | None = None) -> None:
    """struct.field = value; ValueError, and the value that was, where an integer does not fit."""
    if isinstance(value, str):
        value = value.encode()
    before = getattr(struct, field)
    try:
        ctypes.Structure.__setattr__(struct, field, value)
        stored = getattr(struct, field)
    except OverflowError:
        stored = None
    except ValueError as error:
        raise ValueError(f"{name or field}: {error}") from None
    if isinstance(value, int) and stored != value:
        ctypes.Structure.__setattr__(struct, field, before)
        raise ValueError(f"{name or field}: {value}, expected a number of {8 * getattr(type(struct), field).size} bits")


class Problem(_c.ProblemStruct):
    """Everything about a call but its arrays: every field of tessera_problem, by its name in the C header.

    Problem("fwd bf16 b4 hq32 hkv8 sq4096 d128 causal") reads problem text; keywords set fields on top of it or of the
    defaults: Problem(batch=2, seqlen_q=8, ...). str() gives the canonical text. return_lse says whether a forward run
    writes lse, which no word of the text does. The field `pass` is reached by getattr.

    ValueError: a word that is not understood, a field that does not exist or does not fit.
    """

    def __init__(self, text: str | None = None, *, return_lse: bool = False, **fields: Any):
        super().__init__()
        _lib.tessera_problem_init(ctypes.byref(self), ctypes.sizeof(_c.ProblemStruct))
        if text is not None:
            if "\0" in text:
                raise ValueError(f"problem text {text!r}: a zero character, expected words")
            status = _c.Status()
            code = _lib.tessera_problem_parse(text.encode(), ctypes.byref(self), ctypes.byref(status))
            if code:
                raise status_failure(code, status)
        if getattr(self, "pass") == _c.FORWARD:
            self.flags = self.flags | _c.FLAG_LSE if return_lse else self.flags & ~_c.FLAG_LSE
        for field, value in fields.items():
            if not hasattr(self, field):
                raise ValueError(f"{field}: no field of a problem")
            set_field(self, field, value)

    def __setattr__(self, field: str, value: Any) -> None:
        """AttributeError: there is no such field. ValueError: the number does not fit. ctypes would keep both."""
        if not hasattr(type(self), field):
            raise AttributeError(f"{field}: no field of a problem")
        set_field(self, field, value)

    def __str__(self) -> str:
        return _read_text(_lib.tessera_problem_format, ctypes.byref(self))

    def __repr__(self) -> str:
        return f"tessera.Problem({str(self)!r})"


def as_problem(problem: str | Problem) -> Problem:
    if isinstance(problem, str):
        return Problem(problem)
    if isinstance(problem, Problem):
        return problem
    raise TypeError(f"problem: expected problem text or a tessera.Problem, not {type(problem).__name__}")


class Support:
    """The answer of supports(): true or false, with `reasons`, one line a kernel that refuses."""

    __slots__ = ("supported", "reasons")

    def __init__(self, supported: bool, reasons: str):
        self.supported = supported
        self.reasons = reasons

    def __bool__(self) -> bool:
        return self.supported

    def __repr__(self) -> str:
        return f"Support({self.supported}, {self.reasons!r})"


def _ask_support(problem: Problem) -> tuple[int, str]:
    capacity = 1 << 16
    buffer = ctypes.create_string_buffer(capacity)
    code = _lib.tessera_supports(ctypes.byref(problem), buffer, capacity)
    return code, buffer.value.decode("utf-8", "replace").strip()


def supports(problem: str | Problem) -> Support:
    """Whether some kernel of this library takes the problem on this machine.

    ValueError: the problem itself is wrong, so that no kernel anywhere could take it.
    """
    problem = as_problem(problem)
    code, reasons = _ask_support(problem)
    if code == _c.INVALID_ARGUMENT:
        raise failure(code, reasons)
    return Support(code == _c.OK, reasons)


def devices(json: bool = False) -> Any:
    """What this machine has and which kernels it can run: words, or with json=True a dict."""
    text = _read_text(_lib.tessera_devices, int(json))
    return _json.loads(text) if json else text


def version() -> str:
    """The version of the shared library, "major.minor.patch"."""
    number = _lib.tessera_version()
    return f"{number >> 16}.{number >> 8 & 255}.{number & 255}"


class _Workspaces(threading.local):
    """One workspace a thread, taken out while it is in use, so that a call inside a call gets its own."""

    free: Any = None

    def take(self, size: int) -> tuple[Any, int]:
        held = self.free
        self.free = None
        if held is not None and held[2] >= size:
            return held, held[1]
        memory = bytearray(size + 255)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        address += -address % 256
        return (memory, address, size), address

    def put(self, held: Any) -> None:
        if held[2] <= _KEPT_WORKSPACE_BYTES:
            self.free = held


workspaces = _Workspaces()
_SIZE_OF_TENSORS = ctypes.sizeof(_c.Tensors)
_byref = ctypes.byref
_run = _lib.tessera_plan_run


class Plan:
    """A problem with the kernel chosen for it; immutable, and any number of threads may run it at once.

    Plan("fwd f32 b2 hq8 hkv2 sq128 d64 causal") or Plan(Problem(...)) plans for contiguous arrays; plan(q, k, v, ...)
    for arrays as they lie.

    kernel           name of the chosen kernel, "cpu.avx2.forward"
    passed_over      how many kernels that stand before it refused, and first_reason the first one's reason
    workspace_bytes  bytes of 256-byte aligned workspace that a run needs; 0: none
    problem          a copy of the problem

    ValueError: the problem is wrong. NotImplementedError: no kernel takes it; the message gives each kernel's reason.
    RuntimeError: no such device.
    """

    __slots__ = (
        "_handle",
        "_problem",
        "_specs",
        "_accepted",
        "kernel",
        "passed_over",
        "first_reason",
        "workspace_bytes",
        "__weakref__",
    )

    def __init__(self, problem: str | Problem):
        self._handle = None
        problem = as_problem(problem)
        self._problem = Problem()
        ctypes.pointer(self._problem)[0] = problem
        self._specs: dict[str, tuple] | None = None
        self._accepted: dict[str, tuple] = {}  # the key of the last view of each operand that was found right
        handle, status = ctypes.c_void_p(), _c.Status()
        code = _lib.tessera_plan_create(_byref(problem), _byref(handle), _byref(status))
        if code:
            message = status.message.decode("utf-8", "replace")
            if code == _c.UNSUPPORTED:
                reasons = _ask_support(problem)[1]
                message = message if message in reasons else f"{message}\n{reasons}"
            raise failure(code, message)
        self._handle = handle
        reason = ctypes.c_char_p()
        self.kernel: str = _lib.tessera_plan_kernel(handle).decode()
        self.passed_over: int = _lib.tessera_plan_passed_over(handle, _byref(reason))
        self.first_reason: str = (reason.value or b"").decode("utf-8", "replace")
        self.workspace_bytes: int = _lib.tessera_plan_workspace(handle)

    def __del__(self):
        if self._handle is not None:
            _lib.tessera_plan_destroy(self._handle)

    def __repr__(self) -> str:
        return f"<tessera.Plan {str(self._problem)!r}: {self.kernel}>"

    @property
    def problem(self) -> Problem:
        copy = Problem()
        ctypes.pointer(copy)[0] = self._problem
        return copy

    def explain(self, json: bool = False) -> Any:
        """The kernel, its tile and threads, FLOPs, bytes and bound, and every other kernel's reason for refusing:
        words, or with json=True a dict."""
        text = _read_text(_lib.tessera_plan_explain, self._handle, int(json))
        return _json.loads(text) if json else text

    def run(self, *, workspace: Any = None, stream: int | None = None, **arrays: Any) -> None:
        """Runs the plan on arrays that the caller owns; outputs are written in place and nothing is allocated for them.

        Arrays go by the names of the C interface, with the shapes, strides and dtypes that were planned for:
        q k v o [batch, seqlen, heads, dim] (packed [total, heads, dim], paged k v [page, slot, heads_kv, dim]), lse
        [batch, heads_q, seqlen_q] (packed [heads_q, total_q]) float32 or float64, cu_seqlens_q cu_seqlens_k
        [batch + 1], seqused_q seqused_k leftpad batch_idx [batch], page_table [batch, max_pages] int32, alibi_slopes
        [heads_q] or [batch, heads_q] float32, sinks [heads_q] float32, bias; backward: d_o d_lse dq dk dv d_bias
        d_sinks. Scales of int8 or e4m3 operands, k_scale v_scale [batch or page, row block, heads_kv] and q_scale
        [batch, row block, heads_q], are float32; extent 1 where the problem's stride is 0; left out, they are 1. v_mean
        [heads_kv, dim_v] or [batch, heads_kv, dim_v] float32. v of v_order 1 as quantize(order=1) gives it.

        workspace  array of at least workspace_bytes bytes, 256-byte aligned; None: this thread's own (CPU only)
        stream     CUDA: a stream handle; None: the current stream of the first array's framework where it has one, as
                   torch and CuPy do, else the legacy default stream. A run does not wait for the device

        ValueError: an array that is missing, is not planned for, or does not have the planned shape, strides, dtype or
        device; a workspace that is too small. Nothing is written then.
        """
        tensors = _c.Tensors()
        tensors.size = _SIZE_OF_TENSORS
        specs = self._specs
        if specs is None:
            specs = self._specs = operand_specs(self._problem)
        views = []
        for name, array in arrays.items():
            if array is None:
                continue
            spec = specs.get(name)
            if spec is None:
                raise ValueError(f"{name}: not an array of this plan, which takes {', '.join(specs)}")
            one = view(array, name)
            if self._accepted.get(name) != one.key:
                _check_operand(one, name, spec, self._problem.device)
                self._accepted[name] = one.key
            if spec[3] and one.read_only:
                raise ValueError(f"{name}: read-only, but it is written")
            setattr(tensors, name, nothing(len(views)) if spec[3] and 0 in one.shape else one.pointer)
            views.append(one)
        for name, spec in specs.items():
            if arrays.get(name) is None and name not in _SCALES:
                raise ValueError(f"{name}: missing, expected an array of shape {list(spec[0])}")
        given = None
        if workspace is not None:
            one = view(workspace, "workspace")
            if one.raw_strides is not None and one.strides("workspace") != contiguous(one.shape):
                raise ValueError("workspace: not contiguous")
            if one.read_only or one.device != self._problem.device:
                raise ValueError("workspace: read-only or on another device than the plan")
            count = 1
            for n in one.shape:
                count *= n
            given = (one.pointer, count * DTYPE_BYTES[one.dtype])
        if stream is None and self._problem.device >= 0:
            stream = views[0].kind.stream(self._problem.device)
        self.launch(tensors, given, stream)

    def launch(self, tensors: _c.Tensors, workspace: tuple[int, int] | None, stream: int | None) -> None:
        """Runs on pointers that were checked already. `workspace` is (address, bytes), `stream` a CUDA stream."""
        if _which.expected:
            _which.check(self)
        status = _c.Status()
        execution = None
        device = self._problem.device
        if device >= 0:
            execution = _byref(_c.Exec(ctypes.sizeof(_c.Exec), stream, None))
        if workspace is not None:
            code = _run(self._handle, _byref(tensors), *workspace, execution, _byref(status))
        elif self.workspace_bytes == 0:
            code = _run(self._handle, _byref(tensors), None, 0, execution, _byref(status))
        elif device >= 0:
            raise ValueError(
                f"workspace: missing; this plan needs {self.workspace_bytes} bytes on CUDA device {device}"
            )
        else:
            held, address = workspaces.take(self.workspace_bytes)
            code = _run(self._handle, _byref(tensors), address, self.workspace_bytes, execution, _byref(status))
            workspaces.put(held)
        if code:
            raise status_failure(code, status)
        _which.last = self


_SCALES = ("q_scale", "k_scale", "v_scale")  # may be left out: the factor is 1


def _strides(desc: _c.Desc, shape: tuple[int, ...], zero_is_contiguous: bool) -> tuple[int, ...]:
    given = tuple(desc.stride)
    if zero_is_contiguous and not any(given):
        return contiguous(shape)
    given = given[: len(shape) - 1] + (given[3] if len(shape) == 4 else 1,)
    return tuple(1 if n <= 1 else s for n, s in zip(shape, given))


def operand_specs(p: Problem) -> dict[str, tuple]:
    """For each array that a run of the problem takes: (shape, strides in elements, dtype, written)."""
    f = p.flags
    backward = getattr(p, "pass") == _c.BACKWARD
    packed_q, packed_kv, paged = p.layout_q == _c.PACKED, p.layout_kv == _c.PACKED, p.layout_kv == _c.PAGED
    batch_kv = p.batch_kv or p.batch
    lead_q = (p.total_q,) if packed_q else (p.batch, p.seqlen_q)
    lead_kv = (p.total_k,) if packed_kv else (p.num_pages, p.page_size) if paged else (batch_kv, p.seqlen_k)
    specs: dict[str, tuple] = {}

    def tensor(name: str, lead: tuple[int, ...], heads: int, dim: int, written: bool) -> None:
        desc, shape = getattr(p, name), (*lead, heads, dim)
        specs[name] = (shape, _strides(desc, shape, True), desc.dtype, written)

    def plain(
        name: str, wanted: Any, shape: tuple[int, ...], dtype: int, written: bool = False, row_stride: int = 0
    ) -> None:
        if wanted:
            strides = contiguous(shape)
            if row_stride and len(shape) > 1 and shape[0] > 1:
                strides = (row_stride, *strides[1:])
            specs[name] = (shape, strides, dtype, written)

    tensor("q", lead_q, p.heads_q, p.head_dim_qk, False)
    tensor("k", lead_kv, p.heads_kv, p.head_dim_qk, False)
    if p.v_order:
        slots = (p.total_k + 15 * p.batch) // 16 * 16 if packed_kv else -(-lead_kv[1] // 16) * 16
        shape = (*lead_kv[:-1], p.heads_kv, p.head_dim_v, slots)
        specs["v"] = (shape, _strides(p.v, shape, True), p.v.dtype, False)
    else:
        tensor("v", lead_kv, p.heads_kv, p.head_dim_v, False)
    tensor("o", lead_q, p.heads_q, p.head_dim_v, not backward)
    lse_shape = (p.heads_q, p.total_q) if packed_q else (p.batch, p.heads_q, p.seqlen_q)
    lse_dtype = _c.F64 if p.q.dtype == _c.F64 else _c.F32
    plain("lse", backward or f & _c.FLAG_LSE, lse_shape, lse_dtype, not backward)
    plain("cu_seqlens_q", packed_q, (p.batch + 1,), I32)
    plain("cu_seqlens_k", packed_kv, (p.batch + 1,), I32)
    for name, flag in (
        ("seqused_q", _c.FLAG_SEQUSED_Q),
        ("seqused_k", _c.FLAG_SEQUSED_K),
        ("leftpad", _c.FLAG_LEFTPAD),
    ):
        plain(name, f & flag, (p.batch,), I32)
    plain("batch_idx", f & _c.FLAG_BATCH_IDX, (p.batch,), I32)
    plain("page_table", paged, (p.batch, p.max_pages), I32, row_stride=p.page_table_stride)
    slopes = (p.batch, p.heads_q) if p.alibi_stride else (p.heads_q,)
    plain("alibi_slopes", f & _c.FLAG_ALIBI, slopes, _c.F32, row_stride=p.alibi_stride)
    plain("sinks", f & _c.FLAG_SINKS, (p.heads_q,), _c.F32)
    mean = (p.heads_kv, p.head_dim_v)
    if p.v_mean_stride:
        mean = (p.batch if packed_kv else batch_kv, *mean)
    plain("v_mean", f & _c.FLAG_V_MEAN, mean, _c.F32, row_stride=p.v_mean_stride)
    square = (p.batch, p.heads_q, p.seqlen_q, p.seqlen_k)
    for name, flag, written in (("bias", _c.FLAG_BIAS, False), ("d_bias", _c.FLAG_D_BIAS, True)):
        if f & flag:
            desc = getattr(p, name)
            specs[name] = (square, _strides(desc, square, False), desc.dtype, written)
    lead_scale = p.num_pages if paged else p.batch if packed_kv else batch_kv
    rows_k = p.page_size if paged else p.seqlen_k
    for name, lead, rows, heads in (
        ("q_scale", p.batch, p.seqlen_q, p.heads_q),
        ("k_scale", lead_scale, rows_k, p.heads_kv),
        ("v_scale", lead_scale, rows_k, p.heads_kv),
    ):
        if getattr(p, name[0]).dtype in (_c.INT8, _c.E4M3):
            block = getattr(p, name + "_rows")
            shape = (lead, -(-rows // block) if block else 1, heads)
            strides = tuple(1 if n <= 1 else s for n, s in zip(shape, getattr(p, name).stride))
            specs[name] = (shape, strides, _c.F32, False)
    if backward:
        tensor("d_o", lead_q, p.heads_q, p.head_dim_v, False)
        plain("d_lse", f & _c.FLAG_D_LSE, lse_shape, lse_dtype)
        tensor("dq", lead_q, p.heads_q, p.head_dim_qk, True)
        tensor("dk", lead_kv, p.heads_kv, p.head_dim_qk, True)
        tensor("dv", lead_kv, p.heads_kv, p.head_dim_v, True)
        plain("d_sinks", f & _c.FLAG_D_SINKS, (p.heads_q,), _c.F32, True)
    return specs


def scale_strides(one: View, name: str, full: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of scales over [batch or page, row block, heads]: 0 where the extent is 1 and is needed for more; missing
    leading dimensions count as 1."""
    missing = 3 - len(one.shape)
    shape = (1,) * missing + tuple(one.shape)
    if missing < 0 or any(n not in (1, size) for n, size in zip(shape, full)):
        words = ", ".join(f"{size} or 1" for size in full)
        raise ValueError(f"{name}: shape {list(one.shape)}, expected [{words}]")
    given = (0,) * missing + one.strides(name)
    return tuple(1 if size <= 1 else 0 if n == 1 else s for n, size, s in zip(shape, full, given))


def broadcast_strides(one: View, name: str, square: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a bias [b|1, h|1, sq|1, sk] over the whole [b, h, sq, sk]; missing leading dimensions count as 1."""
    missing = 4 - len(one.shape)
    shape = (1,) * missing + tuple(one.shape)
    if missing < 0 or any(n != full and (n != 1 or i == 3) for i, (n, full) in enumerate(zip(shape, square))):
        b, h, sq, sk = square
        raise ValueError(f"{name}: shape {list(one.shape)}, expected [{b} or 1, {h} or 1, {sq} or 1, {sk}]")
    given = (0,) * missing + one.strides(name)
    return tuple(1 if full <= 1 else 0 if n == 1 else s for n, full, s in zip(shape, square, given))


def _check_operand(one: View, name: str, spec: tuple, device: int) -> None:
    shape, strides, dtype, _ = spec
    if name in ("bias", "d_bias"):
        given = broadcast_strides(one, name, shape)
    elif name in _SCALES:
        given = scale_strides(one, name, shape)
    elif one.shape != shape:
        raise ValueError(f"{name}: shape {list(one.shape)}, planned for {list(shape)}")
    else:
        given = one.strides(name)
    if one.dtype != dtype:
        raise ValueError(f"{name}: dtype {DTYPE_NAMES[one.dtype]}, planned for {DTYPE_NAMES.get(dtype, dtype)}")
    if given != strides and 0 not in shape:
        raise ValueError(f"{name}: strides {list(given)}, planned for {list(strides)}")
    if one.device != device:
        raise ValueError(f"{name}: on device {one.device}, planned for {device} (-1: the CPU)")


def explain(problem: str | Problem, json: bool = False) -> Any:
    """How this library would run the problem on this machine, or on the GPU that its device_name names: words, or with
    json=True a dict. Errors as for Plan."""
    return Plan(problem).explain(json)
