#pragma once

#include <cstdint>
#include <span>

#include "transport/collective/group.h"

namespace centroid::collective {

/// Operations of a group. Every member issues the same ones with the same sizes, in the same order
/// per tag. `x` blocks; `x_async` returns at once and moves its bytes while the caller computes;
/// `co_await x_async(...).ended()` is the form for coroutines. In place: input and output are the
/// same memory; other overlaps are refused.
///
/// fails   invalid_argument (sizes, types, root: nothing is sent); else the group ends with the
///         cause, which names the rank: unavailable (it died or left), deadline_exceeded (it is
///         silent), failed_precondition (it issued something else), or the error of `abort`
/// bits    the same on every rank and in every run of the same world and sizes, whatever the timing
/// steps, bytes   docs/explanation/rounds.md#all-reduce-algorithms

/// Combine the numbers of all ranks; every rank receives the result.
Handle all_reduce_async(const Group& group, ConstElements input, Elements output,
                        CallOptions options = {});
Status all_reduce(const Group& group, ConstElements input, Elements output,
                  CallOptions options = {});
Handle all_reduce_async(const Group& group, Elements data, CallOptions options = {});
Status all_reduce(const Group& group, Elements data, CallOptions options = {});

/// Combine; rank i receives part i. `counts`: elements of each part; empty: even, the first r parts
/// one longer. In place if the output is its own part within the input; the rest of the input is
/// then overwritten.
Handle reduce_scatter_async(const Group& group, ConstElements input, Elements output,
                            CallOptions options = {}, std::span<const std::uint64_t> counts = {});
Status reduce_scatter(const Group& group, ConstElements input, Elements output,
                      CallOptions options = {}, std::span<const std::uint64_t> counts = {});

/// Every rank receives the parts of all, in rank order. In place if the input is its own part
/// within the output.
Handle all_gather_async(const Group& group, ConstElements input, Elements output,
                        CallOptions options = {}, std::span<const std::uint64_t> counts = {});
Status all_gather(const Group& group, ConstElements input, Elements output,
                  CallOptions options = {}, std::span<const std::uint64_t> counts = {});

/// Every rank receives the root's data.
Handle broadcast_async(const Group& group, Elements data, std::uint32_t root,
                       CallOptions options = {});
Status broadcast(const Group& group, Elements data, std::uint32_t root, CallOptions options = {});

/// Part i of the input is sent to rank i. Empty counts: even parts of the same size on every rank.
Handle all_to_all_async(const Group& group, ConstElements input, Elements output,
                        CallOptions options = {}, std::span<const std::uint64_t> send_counts = {},
                        std::span<const std::uint64_t> receive_counts = {});
Status all_to_all(const Group& group, ConstElements input, Elements output,
                  CallOptions options = {}, std::span<const std::uint64_t> send_counts = {},
                  std::span<const std::uint64_t> receive_counts = {});

/// The root receives the parts of all. `counts` empty: the same on every rank, or on the root the
/// even parts of the output.
Handle gather_async(const Group& group, ConstElements input, Elements output, std::uint32_t root,
                    CallOptions options = {}, std::span<const std::uint64_t> counts = {});
Status gather(const Group& group, ConstElements input, Elements output, std::uint32_t root,
              CallOptions options = {}, std::span<const std::uint64_t> counts = {});
/// Rank i receives part i of the root's input.
Handle scatter_async(const Group& group, ConstElements input, Elements output, std::uint32_t root,
                     CallOptions options = {}, std::span<const std::uint64_t> counts = {});
Status scatter(const Group& group, ConstElements input, Elements output, std::uint32_t root,
               CallOptions options = {}, std::span<const std::uint64_t> counts = {});

/// Returns after every rank has called it.
Handle barrier_async(const Group& group, CallOptions options = {});
Status barrier(const Group& group, CallOptions options = {});

/// To and from one rank; matched in order per pair, direction and tag.
Handle send_async(const Group& group, ConstElements data, std::uint32_t to,
                  CallOptions options = {});
Status send(const Group& group, ConstElements data, std::uint32_t to, CallOptions options = {});
Handle receive_async(const Group& group, Elements data, std::uint32_t from,
                     CallOptions options = {});
Status receive(const Group& group, Elements data, std::uint32_t from, CallOptions options = {});

}  // namespace centroid::collective
