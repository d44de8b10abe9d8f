"""The memory of arrays, without a copy: NumPy, PyTorch on the CPU, buffers, DLPack."""

import ctypes

from ._arrays import _bad, _is_torch

BYTES = 7
# Numbers of centroid_dtype; other types can be moved, not reduced.
_NUMPY = {"f4": 1, "f8": 2, "f2": 3, "i4": 5, "i8": 6}
_TORCH = {"torch.float32": 1, "torch.float64": 2, "torch.float16": 3, "torch.bfloat16": 4, "torch.int32": 5, "torch.int64": 6}
_BUFFER = {"f": (1, 4), "d": (2, 8), "e": (3, 2), "i": (5, 4), "l": (6, 8), "q": (6, 8), "<i": (5, 4), "<l": (6, 8), "<q": (6, 8), "<f": (1, 4), "<d": (2, 8)}
_DLPACK = {(2, 32): 1, (2, 64): 2, (2, 16): 3, (4, 16): 4, (0, 32): 5, (0, 64): 6}


class Memory:
    """Elements without gaps at `address`; it keeps them alive."""

    __slots__ = ("array", "address", "count", "width", "dtype", "name", "keep")

    def __init__(self, array, address, count, width, dtype, name, keep=None):
        self.array, self.address, self.count, self.width, self.dtype, self.name, self.keep = array, address, count, width, dtype, name, keep

    @property
    def bytes(self):
        return self.count * self.width


def memory_of(array, writes=False):
    """The memory of an array; `writes`: it will be changed."""
    if _is_torch(array):
        return _of_torch(array)
    if hasattr(array, "__array_interface__"):
        return _of_numpy(array, writes)
    try:
        view = memoryview(array)
    except TypeError:
        if hasattr(array, "__dlpack__"):
            return _of_dlpack(array)
        raise _bad(f"a {type(array).__name__} is no array: NumPy, PyTorch, DLPack or a buffer") from None
    return _of_buffer(array, view, writes)


def _of_torch(array):
    if array.device.type != "cpu":
        raise _bad(f"the tensor is on {array.device}: copy it to the CPU")
    if not array.is_contiguous():
        raise _bad(f"the tensor of shape {list(array.shape)} has gaps: use contiguous()")
    name = str(array.dtype)
    return Memory(array, array.data_ptr(), array.numel(), array.element_size(), _TORCH.get(name, BYTES), name)


def _of_numpy(array, writes):
    about = array.__array_interface__
    address, is_readonly = about["data"]
    if about.get("strides") is not None:
        raise _bad(f"the array of shape {list(about['shape'])} has gaps: use numpy.ascontiguousarray")
    if writes and is_readonly:
        raise _bad("the array cannot be written")
    count = 1
    for dimension in about["shape"]:
        count *= dimension
    kind = about["typestr"]
    if "O" in kind:
        raise _bad("an array of Python objects has no numbers")
    known = _NUMPY.get(kind[1:], BYTES) if kind[0] in "<|" else BYTES
    return Memory(array, address, count, _width_of(array, kind), known, kind, array)


def _width_of(array, kind):
    return array.itemsize if hasattr(array, "itemsize") else int(kind[2:])


def _of_buffer(array, view, writes):
    if not view.c_contiguous:
        raise _bad(f"the {type(array).__name__} has gaps")
    dtype, width = _BUFFER.get(view.format, (BYTES, view.itemsize))
    if width != view.itemsize:
        dtype = BYTES
    count = view.nbytes // view.itemsize
    if not view.readonly and view.nbytes:
        keep = (ctypes.c_char * view.nbytes).from_buffer(array)
    elif writes and view.readonly:
        raise _bad(f"the {type(array).__name__} cannot be written")
    else:
        keep = (ctypes.c_char * max(view.nbytes, 1)).from_buffer_copy(view.tobytes() or b"\0")
    return Memory(array, ctypes.addressof(keep), count, view.itemsize, dtype, view.format, keep)


class _Tensor(ctypes.Structure):  # DLTensor, at the beginning of DLManagedTensor
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32)]
    _fields_ += [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]
    _fields_ += [("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64)]


def _of_dlpack(array):
    """Reads the capsule in place; the array's owner frees it with the capsule."""
    capsule = array.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = _Tensor.from_address(pointer(capsule, b"dltensor"))
    if tensor.device not in (1, 3):  # kDLCPU, kDLCUDAHost
        raise _bad(f"the array is on a device (DLPack number {tensor.device}): copy it to the CPU")
    count, expected = 1, []
    for at in reversed(range(tensor.ndim)):
        expected.append(count)
        count *= tensor.shape[at]
    if tensor.strides and count and any(tensor.shape[at] > 1 and tensor.strides[at] != step for at, step in zip(reversed(range(tensor.ndim)), expected)):
        raise _bad("the array has gaps")
    width = tensor.bits * tensor.lanes // 8
    dtype = _DLPACK.get((tensor.code, tensor.bits), BYTES) if tensor.lanes == 1 else BYTES
    return Memory(array, (tensor.data or 0) + tensor.offset, count, width, dtype, f"DLPack type {tensor.code} of {tensor.bits} bits", (capsule, array))
