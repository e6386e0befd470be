"""PyTorch tensors: as Views without DLPack (a tenth of its time), and the short path from tensors to a run.

Imported only when torch is loaded already. A call on plain tensors that needs nothing of torch's dispatcher (no
gradient, autocast, compilation, dispatch mode or functorch transform) runs here directly; any other goes through the
registered op of _torch_ops.py, whose kernel is forward() again.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import torch

from . import _c, _which
from ._arrays import I32, NOTHING, View, nothing, unknown_dtype
from ._call import describe, fill, lse_shape, pin, remember
from ._errors import status_failure
from ._problem import Plan, workspaces

Tensor = torch.Tensor
_CODES = {
    torch.float64: _c.F64,
    torch.float32: _c.F32,
    torch.float16: _c.F16,
    torch.bfloat16: _c.BF16,
    torch.float8_e4m3fn: _c.E4M3,
    torch.int8: _c.INT8,
    torch.uint8: _c.U8,
    torch.bool: _c.U8,
    torch.int32: I32,
}
_DTYPES = {
    _c.F64: torch.float64,
    _c.F32: torch.float32,
    _c.F16: torch.float16,
    _c.BF16: torch.bfloat16,
    _c.E4M3: torch.float8_e4m3fn,
    _c.INT8: torch.int8,
    _c.U8: torch.uint8,
}
_STRIDED = torch.strided
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_is_grad_enabled = torch.is_grad_enabled
_is_compiling = torch.compiler.is_compiling
_byref = ctypes.byref
_run = _c.lib.tessera_plan_run
_uint8 = torch.uint8
# q, k, v, o and lse stand behind one another in tessera_tensors, behind its size.
_pack_operands = struct.Struct("@5P").pack_into
_OPERANDS = _c.Tensors.q.offset
assert _c.Tensors.lse.offset == _OPERANDS + 4 * struct.calcsize("P")
_NO_O, _NO_LSE = nothing(0), nothing(1)


def _no_scope() -> Any:
    return None


# Private names of torch, each with a public or careful stand-in where a version lacks it.
_any_autocast = getattr(torch._C, "_is_any_autocast_enabled", torch.is_autocast_enabled)
_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", _no_scope)
_transforms = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", _no_scope)
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def current_stream(device: int) -> int:
    """The handle of the stream that torch works on."""
    if _raw_stream is not None:
        return _raw_stream(device)
    return torch.cuda.current_stream(device).cuda_stream


class TorchKind:
    """Outputs are torch.Tensor on the input's device. Views carry no gradient."""

    blocks = False

    def view(self, x: Any, name: str) -> View:
        if x.requires_grad and _is_grad_enabled():
            raise NotImplementedError(
                f"{name}: requires a gradient, and this call records none; use torch.no_grad() or {name}.detach()"
            )
        dtype = _CODES.get(x.dtype)
        if dtype is None:
            raise unknown_dtype(name, x.dtype)
        if x.is_cpu:
            index = -1
        elif x.is_cuda:
            index = x.get_device()
        else:
            raise ValueError(f"{name}: on device {x.device}, expected cpu or cuda")
        if x.layout is not _STRIDED or x.is_neg():
            raise ValueError(
                f"{name}: a sparse or lazily negated tensor, expected plain memory (call to_dense or resolve_neg)"
            )
        return View(x, None, self, x.data_ptr(), x.shape, x.stride(), 1, dtype, index, False)

    def empty(self, like: View, shape: tuple[int, ...], dtype: int) -> tuple[Any, int]:
        if dtype == like.dtype:
            tensor = like.array.new_empty(shape)
        else:
            tensor = like.array.new_empty(shape, dtype=_DTYPES[dtype])
        return tensor, tensor.data_ptr()

    def finish(self, like: View, tensor: Any) -> Any:
        return tensor

    def stream(self, device: int) -> int:
        return current_stream(device)

    def settle(self, device: int) -> None:
        torch.cuda.current_stream(device).synchronize()


kind = TorchKind()


class _Call:
    """What is remembered of a call: its plan, the shapes of its outputs, and structs that its runs take turns with."""

    __slots__ = ("plan", "handle", "workspace_bytes", "device", "o_shape", "lse_shape", "lse_dtype", "extras", "free")

    def __init__(self, plan: Plan, q: Tensor, v: Tensor, return_lse: bool, extras: tuple[str, ...]):
        problem = plan.problem
        self.plan = plan
        self.handle = plan._handle
        self.workspace_bytes = plan.workspace_bytes
        self.device = problem.device
        self.o_shape = (*q.shape[:-1], v.shape[-1])
        self.lse_shape = lse_shape(problem) if return_lse else None
        self.lse_dtype = torch.float64 if q.dtype is torch.float64 else torch.float32
        self.extras = extras
        self.free: list[tuple] = []

    def slot(self) -> tuple:
        tensors, status = _c.Tensors(), _c.Status()
        tensors.size = ctypes.sizeof(_c.Tensors)
        if self.device < 0:
            return tensors, _byref(tensors), None, None, status, _byref(status)
        execution = _c.Exec(ctypes.sizeof(_c.Exec), None, None)
        return tensors, _byref(tensors), execution, _byref(execution), status, _byref(status)


_calls: dict[tuple, _Call] = {}


def _describe_out(problem: Any, out: Tensor, shape: tuple[int, ...], device: torch.device) -> None:
    if out.shape != shape or out.device != device:
        raise ValueError(f"out: shape {list(out.shape)} on {out.device}, expected {list(shape)} on {device}")
    with torch.no_grad():
        describe(problem, "o", kind.view(out, "out"))


def _extras_key(extras: dict[str, Tensor]) -> tuple:
    return tuple(
        (name, x.shape, x.stride(), x.dtype, x.device, x.data_ptr() & 15, x.is_neg()) for name, x in extras.items()
    )


def _prepare(
    q: Tensor, k: Tensor, v: Tensor, chosen: tuple, extras: dict[str, Tensor], longest: tuple, out: Tensor | None
) -> _Call:
    with torch.no_grad():
        views = {name: kind.view(x, name) for name, x in (("q", q), ("k", k), ("v", v), *extras.items())}
    given = {name: views[name] for name in extras}
    problem = fill(views["q"], views["k"], views["v"], chosen, given, longest)
    if out is not None:
        _describe_out(problem, out, (*q.shape[:-1], v.shape[-1]), q.device)
    plan = Plan(problem)
    return _Call(plan, q, v, chosen[4], tuple(extras))


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    chosen: tuple,
    extras: dict[str, Tensor] | None = None,
    longest: tuple = (None, None),
    out: Tensor | None = None,
    append: _c.AppendArgs | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Runs attention on the current stream: (o, lse), lse None unless chosen. `chosen` comes from _call.options(),
    `extras` and `longest` are as fill() takes them; `out` is written instead of a new o. `append` describes rows that
    the run first writes into k and v, once everything of the call was found right. Records no gradient."""
    try:
        q_pointer, k_pointer, v_pointer = q.data_ptr(), k.data_ptr(), v.data_ptr()
    except RuntimeError:
        with torch.no_grad():
            for name, x in (("q", q), ("k", k), ("v", v)):
                kind.view(x, name)  # says which one has no plain memory
        raise
    odd = (q_pointer | k_pointer | v_pointer) & 15
    key: tuple = (
        q.shape,
        q.stride(),
        q.dtype,
        q.device,
        k.shape,
        k.stride(),
        k.dtype,
        k.device,
        v.shape,
        v.stride(),
        v.dtype,
        v.device,
        odd and (q_pointer & 15, k_pointer & 15, v_pointer & 15),
        chosen,
        pin(),
    )
    if extras:
        key = (key, _extras_key(extras), longest)
    if out is not None:
        key = (key, out.shape, out.stride(), out.dtype, out.device, out.data_ptr() & 15)
    call = _calls.get(key)
    if call is None or q.is_neg() or k.is_neg() or v.is_neg():
        call = remember(_calls, key, _prepare(q, k, v, chosen, extras or {}, longest, out))
    if _which.expected:
        _which.check(call.plan)
    o = q.new_empty(call.o_shape) if out is None else out
    lse = None if call.lse_shape is None else q.new_empty(call.lse_shape, dtype=call.lse_dtype)
    try:
        slot = call.free.pop()
    except IndexError:
        slot = call.slot()
    tensors, tensors_ref, execution, execution_ref, status, status_ref = slot
    _pack_operands(
        tensors,
        _OPERANDS,
        q_pointer or NOTHING,
        k_pointer or NOTHING,
        v_pointer or NOTHING,
        o.data_ptr() or _NO_O,
        0 if lse is None else lse.data_ptr() or _NO_LSE,
    )
    if extras:
        for name, x in extras.items():
            setattr(tensors, name, x.data_ptr() or NOTHING)
    if append is not None:
        tensors.append = ctypes.addressof(append)
    size = call.workspace_bytes
    if execution is not None:
        execution.cuda_stream = current_stream(call.device)
        # The allocator hands this memory out again only to work that the stream orders behind the run.
        memory = q.new_empty(size, dtype=_uint8) if size else None
        address = None if memory is None else memory.data_ptr()
        code = _run(call.handle, tensors_ref, address, size, execution_ref, status_ref)
    elif size:
        held, address = workspaces.take(size)
        code = _run(call.handle, tensors_ref, address, size, None, status_ref)
        workspaces.put(held)
    else:
        code = _run(call.handle, tensors_ref, None, 0, None, status_ref)
    if code:
        raise status_failure(code, status)
    if append is not None:
        tensors.append = None
    call.free.append(slot)
    _which.last = call.plan
    return o, lse


def is_direct(*tensors: Tensor | None) -> bool:
    """Whether nothing of torch's dispatcher is needed for these tensors."""
    if _any_autocast() or _dispatch_modes() or _transforms() is not None:
        return False
    grad = _is_grad_enabled()
    for x in tensors:
        if x is not None and (type(x) not in _PLAIN or grad and x.requires_grad):
            return False
    return True


def takes(q: Any, *arrays: Any) -> bool:
    """Whether all of them are tensors, or None, and q has gradients to give: float8 has none."""
    if not isinstance(q, Tensor) or q.dtype is torch.float8_e4m3fn:
        return False
    for x in arrays:
        if x is not None and not isinstance(x, Tensor):
            return False
    return True


def call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    chosen: tuple,
    extras: dict[str, Tensor] | None = None,
    longest: tuple = (None, None),
) -> tuple[Tensor, Tensor | None]:
    """forward(), directly where that is enough, else through torch.ops.tessera.attention; then lse is never None."""
    if not _is_compiling() and is_direct(q, k, v, *(extras.values() if extras else ())):
        return forward(q, k, v, chosen, extras, longest)
    from . import _torch_ops

    return _torch_ops.attention(q, k, v, chosen, extras or {}, longest)


def attention(q, k, v, chosen, alibi_slopes, sinks, bias, k_scale, v_scale) -> Any:
    """tessera.attention() for tensors."""
    extras = None
    if not (alibi_slopes is None and sinks is None and bias is None and k_scale is None and v_scale is None):
        given = dict(alibi_slopes=alibi_slopes, sinks=sinks, bias=bias, k_scale=k_scale, v_scale=v_scale)
        extras = {name: x for name, x in given.items() if x is not None}
    o, lse = call(q, k, v, chosen, extras)
    return (o, lse) if chosen[4] else o
