#pragma once

#include <memory>

#include "common/base/result.h"
#include "common/device/device.h"
#include "worker/model/backend.h"
#include "worker/model/cuda/cublas.h"
#include "worker/model/cuda/cublas_lt.h"

namespace centroid::worker::cuda {

/// Computes on a GPU: matrix products by cuBLAS, the rest by the kernels of kernels.h, all queued
/// on `stream`. `device` and `stream` outlive the backend.
///
/// memory  work space, one copy of the present batch, and its source in pinned memory. Only
///         `reserve` and steps that were not rehearsed allocate or free
/// bits    the same input gives the same bits on one kind of GPU. Against the CPU: sums run in
///         another order, within 1e-4 of the largest number of a tensor's gradient with
///         Matmul::kF32
/// thread  one at a time; the device's own, if it has one
///
/// layers  with ReLU are one product of cuBLASLt if it is given, has an algorithm for the shape,
///         and passed ReluLayers::check (a failure is logged); all others are a product and a
///         kernel
///
/// fails   as cuBLAS when it creates a handle, and as the device
Result<std::unique_ptr<Backend>> make_cuda_backend(
    Device& device, Stream& stream, Matmul matmul, std::shared_ptr<const cublas::Library> library,
    std::shared_ptr<const cublas_lt::Library> layers = nullptr);

}  // namespace centroid::worker::cuda
