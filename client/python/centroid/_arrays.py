"""Copy arrays (NumPy, PyTorch, any buffer of float32) to and from the library's memory."""

import ctypes
import operator
import zlib


class CentroidError(Exception):
    """What went wrong, where, and what to do, as `message`. `code` is one of:

    unavailable          the server was not reached, or is gone
    deadline_exceeded    a call took longer than its timeout
    aborted              the server lost pushes of this client
    failed_precondition  the server refused, the job halted, or a call came at the wrong moment
    resource_exhausted   there is not enough memory
    data_loss            a checksum is wrong, or a file is damaged
    unimplemented        the library is older than this package
    invalid_argument, not_found, already_exists, cancelled, internal  as the names say
    """

    def __init__(self, code, message):
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


def _is_torch(array):
    return hasattr(array, "data_ptr") and hasattr(array, "detach")


def _bad(text):
    return CentroidError("invalid_argument", text)


def _shape(array, name):
    try:
        return tuple(int(n) for n in (array.shape if hasattr(array, "shape") else memoryview(array).shape))
    except TypeError:
        raise _bad(f"{name} is a {type(array).__name__}, not an array of float32") from None


def _view(array, name):
    try:
        return memoryview(array)
    except (TypeError, ValueError, BufferError):
        raise _bad(f"{name} is a {type(array).__name__} without a buffer, not an array of float32") from None


def _read(array, name, shape=None):
    """Return the address of the array as contiguous float32, and the object that keeps that memory alive."""
    if shape is not None and _shape(array, name) != shape:
        raise _bad(f"{name} has shape {list(_shape(array, name))}, not {list(shape)}")
    if _is_torch(array):
        import torch

        plain = array.detach().to("cpu", torch.float32).contiguous()
        return plain.data_ptr(), plain
    if type(array).__module__ == "numpy":
        array = array.astype("float32", order="C", copy=False)
    view = _view(array, name)
    if view.format != "f" or not view.c_contiguous:
        raise _bad(f"{name} is no array of float32 without gaps (format {view.format})")
    if view.nbytes == 0:
        return 0, view
    if view.readonly:
        copy = (ctypes.c_char * view.nbytes).from_buffer_copy(view.tobytes())
        return ctypes.addressof(copy), copy
    keep = (ctypes.c_char * view.nbytes).from_buffer(array)
    return ctypes.addressof(keep), keep


def _check_writable(array, name):
    """Raise an error unless the array can take the parameters."""
    if _is_torch(array):
        if not array.is_floating_point():
            raise _bad(f"{name} has dtype {array.dtype}: only floating-point tensors can be trained")
        return
    view = _view(array, name)
    if view.readonly or view.format != "f" or not view.c_contiguous:
        what = "cannot be written" if view.readonly else "has gaps" if not view.c_contiguous else f"has format {view.format}"
        raise _bad(f"{name} {what}: tensors hold the parameters, in writable float32 without gaps")


def _tensor_at(address, shape, made):
    """The library's numbers at `address` as a tensor, without a copy. `made` has those of earlier calls by address."""
    found = made.get(address)
    if found is None:
        import torch

        found = made[address] = torch.frombuffer((ctypes.c_float * _size(shape)).from_address(address), dtype=torch.float32).view(shape)
    return found


def _write(array, name, address, shape, made):
    """Copy the numbers at `address` into the array. `made`: as for `_tensor_at`."""
    if _shape(array, name) != shape:
        raise _bad(f"{name} has shape {list(_shape(array, name))} now, and had {list(shape)}")
    count = _size(shape)
    if count == 0:
        return
    if _is_torch(array):
        import torch

        with torch.no_grad():
            array.copy_(_tensor_at(address, shape, made))
        return
    _check_writable(array, name)
    ctypes.memmove((ctypes.c_char * (4 * count)).from_buffer(array), address, 4 * count)


def _number(value, name, low, high):
    """Return the value as an integer from `low` to `high`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise _bad(f"{name} is {value!r}, not an integer") from None
    if not low <= number <= high:
        raise _bad(f"{name} {number} is not from {low} to {high}")
    return number


def _size(shape):
    count = 1
    for dimension in shape:
        count *= dimension
    return count


def _tensors_of(tensors, is_buffer):
    """Return a dict of names and arrays; of a PyTorch module its parameters and the buffers that are averaged."""
    if not hasattr(tensors, "named_parameters"):
        return dict(tensors)
    return {**dict(tensors.named_parameters()), **{name: buffer for name, buffer in tensors.named_buffers() if is_buffer(name)}}


def _frozen_of(tensors):
    """Return the PyTorch parameters that need no gradient, where others do: what comes from a state_dict has none that does."""
    trained = [name for name, tensor in tensors.items() if getattr(tensor, "requires_grad", False)]
    return {name: tensor for name, tensor in tensors.items() if trained and not getattr(tensor, "requires_grad", True)}


def _checksum(tensors):
    """Return a number of the names, shapes and values."""
    sum_ = 0
    for name in sorted(tensors):
        address, memory = _read(tensors[name], name)  # which keeps the copy alive
        size = 4 * _size(_shape(tensors[name], name))
        sum_ = zlib.crc32(f"{name} {_shape(tensors[name], name)}".encode(), sum_)
        if size > 0:
            sum_ = zlib.crc32((ctypes.c_char * size).from_address(address), sum_)
        del memory
    return sum_
