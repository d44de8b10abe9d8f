"""Structures and functions of centroid.h, by ctypes."""

import ctypes

_ABI = 1
_u32, _u64, _double, _text, _memory = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_double, ctypes.c_char_p, ctypes.c_void_p
_keep = ctypes.CFUNCTYPE(None, _memory, _u64)


class _Struct(ctypes.Structure):
    """A struct of centroid.h: its first field is its size."""

    _newer = ()  # fields that an older library does not have

    def __init__(self, **fields):
        for name in self._newer:
            if fields.get(name):
                from . import _lacks  # the package knows its library

                raise _lacks(name)
        super().__init__(size=ctypes.sizeof(type(self)), **fields)


class _Server(_Struct):
    _fields_ = [("size", _u64), ("servers", _text), ("token", _text), ("name", _text), ("tls_authority", _text)]
    _fields_ += [("tls_certificate", _text), ("tls_key", _text), ("tls_server_name", _text), ("timeout_ms", _u64)]


class _Training(_Struct):
    _fields_ = [("size", _u64), ("model", _text), ("codec", _text), ("state_dir", _text), ("samples", _u64), ("batch", _u64), ("data_fingerprint", _u64), ("sample_tokens", _u64), ("on_keep", _keep), ("on_keep_context", _memory)]
    _fields_ += [("exchange", _text)]


# The size of each struct in the first library, which has no centroid_struct_size.
_Server._first, _Training._first = ctypes.sizeof(_Server), _Training.sample_tokens.offset


class _Tensor(ctypes.Structure):
    _fields_ = [("name", _text), ("shape", ctypes.POINTER(_u64)), ("rank", _u32), ("initial", _memory)]


class _Pulled(_Struct):
    _fields_ = [("size", _u64), ("name", _text), ("shape", ctypes.POINTER(_u64)), ("rank", _u32), ("values", _memory)]


class _Share(_Struct):
    _fields_ = [("size", _u64), ("end", _u32), ("evaluate", _u32), ("round", _u64), ("version", _u64), ("epoch", _u64)]
    _fields_ += [("rank", _u32), ("world", _u32), ("begin", _u64), ("count", _u64), ("is_local", _u32), ("overlap", _u32)]


class _Step(_Struct):
    _fields_ = [("size", _u64), ("samples", _u64), ("correct", _u64), ("loss_sum", _double), ("compute_seconds", _double)]


class _GroupOptions(_Struct):
    _fields_ = [("size", _u64), ("rank", _u32), ("world", _u32), ("host", _text), ("token", _text), ("timeout_ms", _u64)]
    _fields_ += [("tls_authority", _text), ("tls_certificate", _text), ("tls_key", _text)]


class _Call(_Struct):
    _fields_ = [("size", _u64), ("dtype", _u32), ("reduction", _u32), ("tag", _u64), ("timeout_ms", _u64), ("ended", _memory), ("context", _u64), ("waits_next", _u32)]


_Step._first, _GroupOptions._first, _Call._first = ctypes.sizeof(_Step), _GroupOptions.tls_authority.offset, ctypes.sizeof(_Call)


class _ShardedState(_Struct):
    _fields_ = [("size", _u64), ("rank", _u32), ("world", _u32), ("step", _u64), ("position", _u64)]
    _fields_ += [("parameter_bytes", _u64), ("gradient_bytes", _u64), ("optimizer_bytes", _u64)]


class _Round(_Struct):
    _fields_ = [("size", _u64), ("outcome", _u32), ("version", _u64), ("wait_seconds", _double)]


_PROTOTYPES = {
    "abi": (_u32, []),
    "version": (_text, []),
    "error": (_text, []),
    "struct_size": (_u64, [_text]),
    "log_level": (ctypes.c_int, [_text]),
    "while_waiting": (None, [ctypes.CFUNCTYPE(None)]),
    "is_buffer": (ctypes.c_int, [_text]),
    "trainer_open": (ctypes.c_int, [_memory, _memory, _memory, _u64, _memory]),
    "trainer_next": (ctypes.c_int, [_memory, _memory]),
    "trainer_indices": (ctypes.c_int, [_memory, _memory]),
    "trainer_indices_ahead": (ctypes.c_int, [_memory, _u64, _memory, _memory]),
    "trainer_parameters": (_memory, [_memory, _u64]),
    "trainer_committed": (_memory, [_memory, _u64]),
    "trainer_gradient": (_memory, [_memory, _u64]),
    "trainer_ready": (ctypes.c_int, [_memory, _u64]),
    "trainer_contribute": (ctypes.c_int, [_memory, _memory]),
    "trainer_finish": (ctypes.c_int, [_memory, _memory, _memory]),
    "trainer_record": (ctypes.c_int, [_memory, _text, _double]),
    "trainer_report": (ctypes.c_int, [_memory, _u64, _u64, _u64, _double]),
    "trainer_stop": (None, [_memory, _text]),
    "trainer_close": (None, [_memory, _text]),
    "pull": (ctypes.c_int, [_memory, _memory, _u64, _memory]),
    "pulled_version": (_u64, [_memory]),
    "pulled_count": (_u64, [_memory]),
    "pulled_get": (ctypes.c_int, [_memory, _u64, _memory]),
    "pulled_free": (None, [_memory]),
    "rows_open": (ctypes.c_int, [_memory, _text, _memory]),
    "rows_dim": (_u32, [_memory]),
    "rows_pull": (ctypes.c_int, [_memory, _memory, _u64, _memory]),
    "rows_push": (ctypes.c_int, [_memory, _memory, _u64, _memory]),
    "rows_push_at": (ctypes.c_int, [_memory, _memory, _u64, _memory, _u64]),
    "rows_rest": (_u64, [_memory]),
    "rows_push_rest": (ctypes.c_int, [_memory]),
    "rows_pushed": (_u64, [_memory]),
    "rows_lost": (_u64, [_memory]),
    "rows_close": (None, [_memory]),
    "group_open": (ctypes.c_int, [_memory, _memory]),
    "group_address": (_text, [_memory]),
    "group_connect": (ctypes.c_int, [_memory, _memory, _u64]),
    "group_join": (ctypes.c_int, [_memory, _text, _memory]),
    "group_rank": (_u32, [_memory]),
    "group_world": (_u32, [_memory]),
    "group_subgroup": (ctypes.c_int, [_memory, _memory, _u64, _memory]),
    "group_abort": (ctypes.c_int, [_memory, _text]),
    "group_close": (None, [_memory]),
    "group_all_reduce": (ctypes.c_int, [_memory, _memory, _memory, _u64, _memory, _memory]),
    "group_reduce_scatter": (ctypes.c_int, [_memory, _memory, _u64, _memory, _memory, _memory, _memory]),
    "group_all_gather": (ctypes.c_int, [_memory, _memory, _memory, _u64, _memory, _memory, _memory]),
    "group_broadcast": (ctypes.c_int, [_memory, _memory, _u64, _u32, _memory, _memory]),
    "group_all_to_all": (ctypes.c_int, [_memory, _memory, _u64, _memory, _memory, _u64, _memory, _memory, _memory]),
    "group_gather": (ctypes.c_int, [_memory, _memory, _u64, _memory, _u32, _memory, _memory]),
    "group_scatter": (ctypes.c_int, [_memory, _memory, _memory, _u64, _u32, _memory, _memory]),
    "group_send": (ctypes.c_int, [_memory, _memory, _u64, _u32, _memory, _memory]),
    "group_receive": (ctypes.c_int, [_memory, _memory, _u64, _u32, _memory, _memory]),
    "group_barrier": (ctypes.c_int, [_memory, _memory, _memory]),
    "sharded_open": (ctypes.c_int, [_memory, _text, _text, _memory, _memory, _u64, _memory]),
    "sharded_get": (ctypes.c_int, [_memory, _memory]),
    "sharded_prefetch": (ctypes.c_int, [_memory, _u32]),
    "sharded_gather": (ctypes.c_int, [_memory, _u32]),
    "sharded_release": (ctypes.c_int, [_memory, _u32]),
    "sharded_parameters": (ctypes.c_int, [_memory, _u64, _memory]),
    "sharded_gradient": (ctypes.c_int, [_memory, _u64, _memory]),
    "sharded_reduce": (ctypes.c_int, [_memory, _u32]),
    "sharded_step": (ctypes.c_int, [_memory, _u64]),
    "sharded_sum": (ctypes.c_int, [_memory, _memory, _u64]),
    "sharded_regroup": (ctypes.c_int, [_memory]),
    "sharded_save": (ctypes.c_int, [_memory, ctypes.c_int]),
    "sharded_end": (ctypes.c_int, [_memory]),
    "sharded_close": (None, [_memory]),
    "codec_open": (ctypes.c_int, [_text, _u64, _memory]),
    "codec_room": (_u64, [_memory]),
    "codec_encode": (ctypes.c_int, [_memory, _memory, _memory, _memory, _memory]),
    "codec_decode": (ctypes.c_int, [_memory, _memory, _u64, ctypes.c_float, ctypes.c_int, _memory]),
    "codec_close": (None, [_memory]),
    "work_wait": (ctypes.c_int, [_memory, _u64]),
    "work_done": (ctypes.c_int, [_memory]),
    "work_free": (None, [_memory]),
    "ended_open": (ctypes.c_int, [_memory]),
    "ended_next": (ctypes.c_int, [_memory, _u64, _memory]),
    "ended_shutdown": (None, [_memory]),
    "ended_close": (None, [_memory]),
}

_CODES = "ok unavailable deadline_exceeded aborted failed_precondition resource_exhausted cancelled data_loss invalid_argument".split()
_CODES += "not_found already_exists unimplemented internal".split()
