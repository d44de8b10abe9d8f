#pragma once

#include <memory>

#include "common/base/result.h"
#include "common/device/device.h"
#include "worker/model/backend.h"
#include "worker/model/cuda/cublas.h"
#include "worker/model/cuda/cublas_lt.h"

namespace centroid::worker::cuda {

/// Computes on a GPU: matrix products by cuBLAS, the rest by the kernels of kernels.h, all queued
/// on `stream`, which no call but `result` waits for. `device` and `stream` outlive it.
///
/// memory  work space, one copy of the present batch, and in pinned memory what it is copied from.
///         Nothing is taken or freed but by `reserve`, and by a step that was not rehearsed
/// bits    the same input gives the same bits on one kind of GPU. Against the CPU: sums run in
///         another order, within 1e-4 of the largest number of a tensor's gradient with
///         Matmul::kF32
/// thread  one at a time; the device's, where there is one
///
/// layers  with ReLU are one product of cuBLASLt, if it is given, has an algorithm for the shape,
///         and passed ReluLayers::check (else why is logged); others, and without it, a product and
///         a kernel
///
/// fails   as cuBLAS does when it makes a handle, and as the device
Result<std::unique_ptr<Backend>> make_cuda_backend(
    Device& device, Stream& stream, Matmul matmul, std::shared_ptr<const cublas::Library> library,
    std::shared_ptr<const cublas_lt::Library> layers = nullptr);

}  // namespace centroid::worker::cuda
