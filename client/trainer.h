#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/tensor/tensor.h"
#include "transport/tls/tls.h"
#include "transport/transport.h"
#include "worker/exchange/exchange.h"

namespace centroid::client {

struct TrainerOptions {
  /// HOST:PORT; several separated by commas. local:JSON: this program alone, without a server
  /// (worker/exchange/local_exchange.h has the settings).
  std::string servers = "127.0.0.1:7070";
  std::string token;
  /// Unique in the cluster, ranks follow it; "": host name, process id, and a number from the
  /// second trainer of a process on. With state_dir it must be given.
  std::string name;
  std::string model = "external";      ///< what all workers of a job must call alike
  std::string codec = "f32";           ///< of contributions (docs/how-to/slow-networks.md)
  std::string state_dir;               ///< keeps what error feedback has left to send; "": nothing
  std::uint64_t samples = 0;           ///< of the whole training data, the same for all workers
  std::uint64_t batch = 1;             ///< samples of a step
  std::uint64_t data_fingerprint = 0;  ///< of the training data, the same for all; 0: not said
  /// That a sample has at most, the same for all, where contributions are weighed by tokens:
  /// StepStats.samples then are the tokens over which the gradient is the mean.
  std::uint64_t sample_tokens = 0;
  /// With local steps: the server saves its state after this round, which parameters() are now;
  /// what the program keeps besides (its optimizer) belongs to it. Called within `next`; a job that
  /// goes on from that checkpoint begins with the round behind it.
  std::function<void(Round)> on_keep;
  /// star: accept no connections of other workers; auto: as the server says.
  std::string exchange = "star";
  std::optional<transport::TlsOptions> tls;
  std::chrono::milliseconds join_timeout{60'000};  ///< give up after so long outside the cluster
  std::chrono::milliseconds stall_timeout{30'000};
  transport::Factory make_transport = transport::make_tcp;  ///< how it reaches the others
  /// Where other workers connect, HOST:PORT; "": a free port of the address that leads to a server.
  std::string peer_listen;
  /// With other workers of this machine; without it each is as if on a machine of its own.
  bool shared_memory = true;
};

/// A training program of any kind as a worker of a cluster: it brings tensors with names, computes
/// on the shares of data that it is given, and gives gradients, or, where the server wants local
/// steps, parameters that it has trained (docs/how-to/pytorch.md). Reconnects by itself.
///
/// loop     next, train, finish; the share of a round that is not finished cannot be skipped
/// memory   parameters, gradients, initial values and what arrives; with local steps parameters,
///          initial values, what arrives, own parameters, contribution, and with fragments, overlap
///          or `contribute` what was sent; 8 bytes a sample where `indices` is called
/// thread   one; request_stop from any, until the destructor
/// source   the same exchange as centroid-worker's
class Trainer {
 public:
  /// `initial`: all tensors end to end; the cluster begins at the first worker's. Does not wait for
  /// the server.
  /// fails  invalid_argument (manifest, sizes, options), resource_exhausted, as make_tls
  static Result<std::unique_ptr<Trainer>> open(TrainerOptions options, Manifest manifest,
                                               std::span<const float> initial);
  ~Trainer();

  /// Wait for the next round or the end. Errors and ends are final: they come again. After the
  /// job's end parameters() are the cluster's; after a stop as they were.
  Result<std::variant<worker::Share, worker::Finished>> next();
  /// Samples of the share that `next` gave, as numbers below `samples`: the same epoch order on all
  /// workers.
  Result<std::vector<std::uint64_t>> indices();
  /// Samples of the shares that probably come next in this epoch, one after the other, to load them
  /// ahead: at most so many shares, each with as many samples as the open one, or what is left of
  /// the epoch. A guess from the distance of the last two shares; empty before.
  Result<std::vector<std::uint64_t>> indices_ahead(std::uint64_t shares);

  const Manifest& manifest() const;
  /// From the first round on: read them; with local steps train them in place.
  std::span<float> parameters(TensorId tensor);
  /// What all workers have agreed on last; other than parameters() only with local steps.
  std::span<const float> committed(TensorId tensor);
  /// Without local steps: the mean gradient of the share goes here.
  std::span<float> gradient(TensorId tensor);

  /// Without local steps: this gradient is final, and may leave while others are computed.
  Status ready(TensorId tensor);
  /// Give what was done up to here. Called by `finish` where it has not been; steps that follow
  /// before it are kept and count in the next round.
  Status contribute(const worker::StepStats& stats);
  /// Wait for the round's end; where it was committed parameters() are the new ones then, else from
  /// `next` on. `stats` as contribute; after it those of the steps since.
  Result<worker::RoundReport> finish(const worker::StepStats& stats);
  /// A number of the program's own (a perplexity, a reward): the mean of those of one name since
  /// the last contribution goes with the next, to REST and metrics (docs/how-to/pytorch.md). Any
  /// time.
  /// fails  as Scalars::record
  Status record(std::string_view name, double value);
  /// What held-out data says of committed(), when a share or the end asks for it.
  void report(const worker::Evaluation& evaluation);
  /// Say goodbye, at most a few seconds. The destructor does it, too.
  void leave(const std::string& why);
  /// `next` returns an end soon; a round that `finish` waits for is lost.
  void request_stop(const std::string& why);

 private:
  struct Impl;
  explicit Trainer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace centroid::client
