/* C interface of Centroid, for programs in any language: libcentroid.so.
 *
 * Functions return 0, or the code of an error, whose text centroid_error() has until the next call
 * of the same thread. Handles belong to one thread at a time, except where it says otherwise.
 * Strings are UTF-8 and are copied; NULL is the default. Structs begin with their size, so that
 * they can grow (centroid_tensor, of which there are arrays, stays as it is): set it to sizeof.
 * docs/how-to/pytorch.md#c explains the use. */
#ifndef CENTROID_H
#define CENTROID_H

#include <stdint.h>

#if defined(__GNUC__)
#define CENTROID_API __attribute__((visibility("default")))
#else
#define CENTROID_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define CENTROID_ABI 1

enum centroid_status {
  CENTROID_OK = 0,
  CENTROID_UNAVAILABLE = 1,         /* not reached, or gone */
  CENTROID_DEADLINE_EXCEEDED = 2,   /* too slow */
  CENTROID_ABORTED = 3,             /* rows: pushes are lost with the server */
  CENTROID_FAILED_PRECONDITION = 4, /* refused, halted, or called at the wrong moment */
  CENTROID_RESOURCE_EXHAUSTED = 5,
  CENTROID_CANCELLED = 6,
  CENTROID_DATA_LOSS = 7,
  CENTROID_INVALID_ARGUMENT = 8,
  CENTROID_NOT_FOUND = 9,
  CENTROID_ALREADY_EXISTS = 10,
  CENTROID_UNIMPLEMENTED = 11,
  CENTROID_INTERNAL = 12
};

typedef struct centroid_trainer centroid_trainer;
typedef struct centroid_rows centroid_rows;
typedef struct centroid_pulled centroid_pulled;

/* Of the library that is loaded; refuse another than CENTROID_ABI. */
CENTROID_API uint32_t centroid_abi(void);
CENTROID_API const char* centroid_version(void);
/* Bytes of struct "server", "training", "step", "group" or "call" that the library knows; 0: it knows none of that
 * name. What a program built for a newer library asks for behind them is refused (unimplemented).
 */
CENTROID_API uint64_t centroid_struct_size(const char* name);
/* What went wrong in this thread's last call; "" when it went well. */
CENTROID_API const char* centroid_error(void);
/* To stderr: trace, debug, info, warn (the default), error or off. */
CENTROID_API int centroid_log_level(const char* level);
/* Calls of this thread that wait call `look` every 50 ms, for example to notice Ctrl-C; it may call
 * centroid_trainer_stop. NULL: nothing.
 */
CENTROID_API void centroid_while_waiting(void (*look)(void));

/* Where the cluster is, and who asks. */
typedef struct centroid_server {
  uint64_t size;
  const char* servers; /* HOST:PORT; several separated by commas, of which one leads. For a trainer
                          also local:JSON, such as local:{"epochs":2}: alone, without a server */
  const char* token;
  const char* name;          /* unique in the cluster; NULL: host name and process id (rows: any) */
  const char* tls_authority; /* PEM file, or "system"; NULL: no TLS */
  const char* tls_certificate;
  const char* tls_key;
  const char* tls_server_name;
  uint64_t timeout_ms; /* outside the cluster, or of one call of rows; 0: 60 s, 30 s */
} centroid_server;

/* ---- training: dense tensors by name --------------------------------------------------------- */

typedef struct centroid_training {
  uint64_t size;
  const char* model;         /* what all workers of the job call alike; NULL: "external" */
  const char* codec;         /* of contributions; NULL: "f32" */
  const char* state_dir;     /* keeps what error feedback has left to send; NULL: nowhere */
  uint64_t samples;          /* of the whole training data, the same for all workers */
  uint64_t batch;            /* samples of a step */
  uint64_t data_fingerprint; /* of the training data, the same for all; 0: not said */
  uint64_t sample_tokens;    /* that a sample has at most, the same for all; with weight_by tokens:
                                what a step says of samples is tokens then */
  /* With local steps, called within centroid_trainer_next: the server saves its state after this
   * round, which the parameters are now; what the program keeps besides belongs to it. NULL: none
   */
  void (*on_keep)(void* context, uint64_t round);
  void* on_keep_context;
  const char*
      exchange; /* "star": accept no connections of other workers; NULL: as the server says */
} centroid_training;

typedef struct centroid_tensor {
  const char* name;
  const uint64_t* shape;
  uint32_t rank;        /* at most 8; 0: a scalar */
  const float* initial; /* product of the shape; the cluster begins at the first worker's */
} centroid_tensor;

enum centroid_end {
  CENTROID_GOES_ON,
  CENTROID_FINISHED,
  CENTROID_STOPPED,
  CENTROID_DRAINED,
  CENTROID_HALTED
};

typedef struct centroid_share {
  uint64_t size;
  uint32_t end;      /* centroid_end; else there is a round */
  uint32_t evaluate; /* look at held-out data with the committed parameters and report, first */
  uint64_t round, version, epoch;
  uint32_t rank, world;
  uint64_t begin, count; /* positions in the epoch's order: centroid_trainer_indices has samples */
  uint32_t is_local;     /* train the parameters in place; else give gradients */
  uint32_t overlap;      /* local steps to be made between contribute and finish */
} centroid_share;

typedef struct centroid_step {
  uint64_t size;
  uint64_t samples, correct; /* trained, and of them right */
  double loss_sum;           /* over samples, nats */
  double compute_seconds;    /* what a step costs here: unequal workers get shares by it */
} centroid_step;

enum centroid_outcome { CENTROID_COMMITTED, CENTROID_SKIPPED, CENTROID_LOST, CENTROID_LATE };

typedef struct centroid_round {
  uint64_t size;
  uint32_t
      outcome; /* centroid_outcome; lost: the cluster went on without us, late: it closed before */
  uint64_t version;
  double wait_seconds;
} centroid_round;

/* 1: a tensor of this name is a buffer, which is kept and not trained (running_mean, running_var):
 * the last part of the name, behind the last dot, begins with "running_". Its gradient is what it
 * was less what it is after the share. Where is_local is 0 normalise in memory of your own: what
 * centroid_trainer_parameters returns is the cluster's state, and not to be written then. */
CENTROID_API int centroid_is_buffer(const char* name);

CENTROID_API int centroid_trainer_open(const centroid_server* server,
                                       const centroid_training* training,
                                       const centroid_tensor* tensors, uint64_t count,
                                       centroid_trainer** trainer);
/* Waits for the next round or the end. */
CENTROID_API int centroid_trainer_next(centroid_trainer* trainer, centroid_share* share);
/* Writes share.count numbers of samples. */
CENTROID_API int centroid_trainer_indices(centroid_trainer* trainer, uint64_t* numbers);
/* Guesses the samples of the next shares of this epoch, to load them ahead, and writes their
 * numbers. There are at most `shares` shares, of share.count numbers each; parts may be shorter, as
 * at the end of the epoch. `numbers` needs room for shares * share.count; `count` becomes how many
 * were written. */
CENTROID_API int centroid_trainer_indices_ahead(centroid_trainer* trainer, uint64_t shares,
                                                uint64_t* numbers, uint64_t* count);
/* Memory of one tensor, from the first share on; NULL: there is no such tensor, or (gradient) the
 * server wants local steps. Valid until close. */
CENTROID_API float* centroid_trainer_parameters(centroid_trainer* trainer, uint64_t tensor);
CENTROID_API const float* centroid_trainer_committed(centroid_trainer* trainer, uint64_t tensor);
CENTROID_API float* centroid_trainer_gradient(centroid_trainer* trainer, uint64_t tensor);
/* The gradient of this tensor is final and may leave. */
CENTROID_API int centroid_trainer_ready(centroid_trainer* trainer, uint64_t tensor);
CENTROID_API int centroid_trainer_contribute(centroid_trainer* trainer, const centroid_step* step);
/* Contributes where contribute was not called, and waits for the round's end. */
CENTROID_API int centroid_trainer_finish(centroid_trainer* trainer, const centroid_step* step,
                                         centroid_round* round);
/* A number of the program's own: the mean of those of a name goes with the next contribution. A
 * name has 1 to 64 letters, digits, _ . / or -, and begins with a letter or _; there are at
 * most 16. */
CENTROID_API int centroid_trainer_record(centroid_trainer* trainer, const char* name, double value);
CENTROID_API int centroid_trainer_report(centroid_trainer* trainer, uint64_t version,
                                         uint64_t samples, uint64_t correct, double loss_sum);
/* From any thread: next returns CENTROID_STOPPED soon. */
CENTROID_API void centroid_trainer_stop(centroid_trainer* trainer, const char* why);
/* Says goodbye (at most a few seconds) and frees. */
CENTROID_API void centroid_trainer_close(centroid_trainer* trainer, const char* why);

/* ---- tensors by name, for a program that is no worker ---------------------------------------- */

typedef struct centroid_pulled_tensor {
  uint64_t size;
  const char* name;
  const uint64_t* shape;
  uint32_t rank;
  const float* values; /* product of the shape */
} centroid_pulled_tensor;

/* The cluster's tensors of these names as they are now, all of one committed version; count 0: all
 * of the model. Waits at most server.timeout_ms (0: 60 s). */
CENTROID_API int centroid_pull(const centroid_server* server, const char* const* names,
                               uint64_t count, centroid_pulled** pulled);
CENTROID_API uint64_t centroid_pulled_version(const centroid_pulled* pulled);
CENTROID_API uint64_t centroid_pulled_count(const centroid_pulled* pulled);
/* In the order of the names, or the model's. What it points to is valid until it is freed. */
CENTROID_API int centroid_pulled_get(const centroid_pulled* pulled, uint64_t index,
                                     centroid_pulled_tensor* tensor);
CENTROID_API void centroid_pulled_free(centroid_pulled* pulled);

/* ---- sparse rows by 64-bit keys (docs/how-to/embedding-tables.md) ----------------------------------------------- */

CENTROID_API int centroid_rows_open(const centroid_server* server, const char* table,
                                    centroid_rows** rows);
CENTROID_API uint32_t centroid_rows_dim(const centroid_rows* rows);
/* values, gradients: count * dim floats, a row after another. */
CENTROID_API int centroid_rows_pull(centroid_rows* rows, const uint64_t* keys, uint64_t count,
                                    float* values);
CENTROID_API int centroid_rows_push(centroid_rows* rows, const uint64_t* keys, uint64_t count,
                                    const float* gradients);
/* With the step of the training, from 1, that a table with a schedule asks for; 0: not said. */
CENTROID_API int centroid_rows_push_at(centroid_rows* rows, const uint64_t* keys, uint64_t count,
                                       const float* gradients, uint64_t step);
/* A push of rows on several servers, or of more than one message holds, may fail when a part of it
 * is applied: the error says where. How many keys of the last push were not applied, or are not
 * known to be; and a call that repeats those alone, each once however often it is called. A copy of
 * them is kept until the next push. */
CENTROID_API uint64_t centroid_rows_rest(const centroid_rows* rows);
CENTROID_API int centroid_rows_push_rest(centroid_rows* rows);
/* Pushes that were answered; those of them that were lost with a server that had no journal. */
CENTROID_API uint64_t centroid_rows_pushed(const centroid_rows* rows);
CENTROID_API uint64_t centroid_rows_lost(const centroid_rows* rows);
CENTROID_API void centroid_rows_close(centroid_rows* rows);

/* ---- collectives: a group of processes, without a server -------------------------------------- */

typedef struct centroid_group centroid_group;
typedef struct centroid_work centroid_work;
typedef struct centroid_ended centroid_ended;

typedef struct centroid_group_options {
  uint64_t size;
  uint32_t rank, world;
  /* Address of this machine that the other ranks reach. NULL: 127.0.0.1, or in join the one that
   * leads to the rendezvous. */
  const char* host;
  const char* token;         /* the same on all ranks; NULL: none */
  uint64_t timeout_ms;       /* of the start, and of an operation; 0: 60 s */
  const char* tls_authority; /* PEM file; signs all ranks' certificates. NULL: no TLS */
  const char* tls_certificate;
  const char* tls_key;
} centroid_group_options;

enum centroid_dtype {
  CENTROID_F32 = 1,
  CENTROID_F64 = 2,
  CENTROID_F16 = 3,
  CENTROID_BF16 = 4,
  CENTROID_I32 = 5,
  CENTROID_I64 = 6,
  CENTROID_U8 = 7 /* bytes, which cannot be reduced */
};

enum centroid_reduction {
  CENTROID_SUM = 1,
  CENTROID_MEAN = 2,
  CENTROID_MIN = 4,
  CENTROID_MAX = 5,
  CENTROID_PRODUCT = 6
};

/* How to call an operation. Every rank passes the same, but for timeout_ms, ended and context. */
typedef struct centroid_call {
  uint64_t size;
  uint32_t dtype;        /* centroid_dtype; 0: f32 */
  uint32_t reduction;    /* centroid_reduction; 0: sum */
  uint64_t tag;          /* operations of different tags may overtake each other */
  uint64_t timeout_ms;   /* 0: the group's */
  centroid_ended* ended; /* notified of the end, if there is a work; NULL: none */
  uint64_t context;      /* what it is told */
  uint32_t waits_next;   /* 1: the caller waits for the work next, which is faster */
} centroid_call;

/* Every process of a group opens it, gives the address to all by any means, and connects with those
 * of all by rank. Any thread may then issue operations; those of one tag in the same order on every
 * rank. When a rank dies, every operation that it takes part in fails at once on all, with
 * CENTROID_UNAVAILABLE and its number; the group cannot be used after a failure. */
CENTROID_API int centroid_group_open(const centroid_group_options* options, centroid_group** group);
/* At most 300 bytes, valid until close. */
CENTROID_API const char* centroid_group_address(const centroid_group* group);
CENTROID_API int centroid_group_connect(centroid_group* group, const char* const* addresses,
                                        uint64_t count);
/* Both at once: rank 0 listens at HOST:PORT, where the others find it. */
CENTROID_API int centroid_group_join(const centroid_group_options* options, const char* rendezvous,
                                     centroid_group** group);
CENTROID_API uint32_t centroid_group_rank(const centroid_group* group);
CENTROID_API uint32_t centroid_group_world(const centroid_group* group);
/* The group of these ranks, ours among them, in ascending order. Every member makes it. */
CENTROID_API int centroid_group_subgroup(const centroid_group* group, const uint32_t* ranks,
                                         uint64_t count, centroid_group** subgroup);
/* Every operation of the group ends with CENTROID_ABORTED on all ranks. From any thread. */
CENTROID_API int centroid_group_abort(centroid_group* group, const char* why);
/* Waits up to 2 s until the peers have read everything. */
CENTROID_API void centroid_group_close(centroid_group* group);

/* Operations. call: NULL: all defaults. work: NULL: block until the end; else the operation begins,
 * its memory is in use until its end, and *work is to be freed. Counts are of elements; input and
 * output may be the same memory. `counts` have an element for each rank; NULL: even parts. */
CENTROID_API int centroid_group_all_reduce(centroid_group* group, const void* input, void* output,
                                           uint64_t count, const centroid_call* call,
                                           centroid_work** work);
/* Rank i gets part i of the reduced input. count: of the input. */
CENTROID_API int centroid_group_reduce_scatter(centroid_group* group, const void* input,
                                               uint64_t count, void* output, const uint64_t* counts,
                                               const centroid_call* call, centroid_work** work);
/* count: of the output. */
CENTROID_API int centroid_group_all_gather(centroid_group* group, const void* input, void* output,
                                           uint64_t count, const uint64_t* counts,
                                           const centroid_call* call, centroid_work** work);
CENTROID_API int centroid_group_broadcast(centroid_group* group, void* memory, uint64_t count,
                                          uint32_t root, const centroid_call* call,
                                          centroid_work** work);
/* Part i of the input goes to rank i. */
CENTROID_API int centroid_group_all_to_all(centroid_group* group, const void* input,
                                           uint64_t send_count, const uint64_t* send_counts,
                                           void* output, uint64_t receive_count,
                                           const uint64_t* receive_counts,
                                           const centroid_call* call, centroid_work** work);
/* count: of an even part; parts of other sizes: all_to_all. */
CENTROID_API int centroid_group_gather(centroid_group* group, const void* input, uint64_t count,
                                       void* output, uint32_t root, const centroid_call* call,
                                       centroid_work** work);
CENTROID_API int centroid_group_scatter(centroid_group* group, const void* input, void* output,
                                        uint64_t count, uint32_t root, const centroid_call* call,
                                        centroid_work** work);
/* Matched in order per pair and tag. */
CENTROID_API int centroid_group_send(centroid_group* group, const void* memory, uint64_t count,
                                     uint32_t to, const centroid_call* call, centroid_work** work);
CENTROID_API int centroid_group_receive(centroid_group* group, void* memory, uint64_t count,
                                        uint32_t from, const centroid_call* call,
                                        centroid_work** work);
CENTROID_API int centroid_group_barrier(centroid_group* group, const centroid_call* call,
                                        centroid_work** work);

/* Waits for the end, at most timeout_ms (0: without limit; an operation has its own), and returns
 * how it ended. CENTROID_DEADLINE_EXCEEDED while centroid_work_done is 0: it goes on. */
CENTROID_API int centroid_work_wait(centroid_work* work, uint64_t timeout_ms);
CENTROID_API int centroid_work_done(const centroid_work* work);
/* Waits for the end first. */
CENTROID_API void centroid_work_free(centroid_work* work);

/* A queue of ended operations, of any number of groups. */
CENTROID_API int centroid_ended_open(centroid_ended** ended);
/* Waits for the next, at most timeout_ms (0: without limit), and gives its context. From any
 * thread. CENTROID_CANCELLED: the queue was shut down and is empty. */
CENTROID_API int centroid_ended_next(centroid_ended* ended, uint64_t timeout_ms, uint64_t* context);
CENTROID_API void centroid_ended_shutdown(centroid_ended* ended);
/* After every centroid_ended_next has returned. */
CENTROID_API void centroid_ended_close(centroid_ended* ended);

/* ---- a model of which each process has a part (docs/how-to/larger-models.md#your-own-model) --- */

typedef struct centroid_sharded centroid_sharded;

typedef struct centroid_sharded_state {
  uint64_t size;
  uint32_t rank, world; /* now: they change when ranks are lost, or come */
  uint64_t step;        /* that all ranks have made */
  uint64_t position;    /* of that step */
  uint64_t parameter_bytes, gradient_bytes, optimizer_bytes; /* here now, with copies */
} centroid_sharded_state;

/* Meets the other ranks as centroid_group_join does, or joins their job if it has begun. The model
 * is the newest checkpoint's. If there is none, it has rank 0's initial values; other ranks may pass
 * NULL for theirs. layers: the layer of each tensor, ascending. The tensors of a layer are gathered
 * together. NULL: each tensor is a layer. settings: JSON, such as {"sharding":"full","optimizer":"adamw","lr":0.001}; also
 * shard_replicas, codec, codec_down, checkpoint_dir, checkpoint_keep, and those of the optimizer.
 *
 * Every rank makes the same calls, with the same layers. In forward and backward gather a layer, use
 * its parameters, and release it; in backward add to the gradients of its tensors first, then reduce
 * it. Reduce a layer once a step: micro-batches add to gradients before. At the end of a step all
 * layers are released. */
CENTROID_API int centroid_sharded_open(const centroid_group_options* group, const char* rendezvous,
                                       const char* settings, const centroid_tensor* tensors,
                                       const uint32_t* layers, uint64_t count,
                                       centroid_sharded** sharded);
CENTROID_API int centroid_sharded_get(centroid_sharded* sharded, centroid_sharded_state* state);
/* Begins to gather: a later gather then waits less. */
CENTROID_API int centroid_sharded_prefetch(centroid_sharded* sharded, uint32_t layer);
CENTROID_API int centroid_sharded_gather(centroid_sharded* sharded, uint32_t layer);
CENTROID_API int centroid_sharded_release(centroid_sharded* sharded, uint32_t layer);
/* Of a gathered layer, until its release, and no longer than the next step, regroup or close: after
 * these no pointer to parameters or gradients may be used. */
CENTROID_API int centroid_sharded_parameters(centroid_sharded* sharded, uint64_t tensor,
                                             const float** values);
/* Add the tensor's gradient to these numbers, which are 0 at first; they are valid until its layer is
 * reduced. The step uses the mean over the ranks: where they have other numbers of samples, multiply
 * by own samples * world / all samples. */
CENTROID_API int centroid_sharded_gradient(centroid_sharded* sharded, uint64_t tensor,
                                           float** values);
CENTROID_API int centroid_sharded_reduce(centroid_sharded* sharded, uint32_t layer);
/* Makes the optimizer's step. position: in the program's data after it, the same on all ranks. */
CENTROID_API int centroid_sharded_step(centroid_sharded* sharded, uint64_t position);
/* numbers[i] becomes the sum over all ranks, such as of losses. */
CENTROID_API int centroid_sharded_sum(centroid_sharded* sharded, double* numbers, uint64_t count);
/* When a rank is lost, operations fail with CENTROID_UNAVAILABLE, CENTROID_ABORTED or
 * CENTROID_DEADLINE_EXCEEDED on all others, until each calls this: they go on without it from
 * memory, or from the newest checkpoint. Between two steps it takes in ranks that wait. Get the
 * state afterwards: it says from which step on. With checkpoint_dir this, open and save may wait 10
 * minutes for the disks of other ranks, if timeout_ms is less. */
CENTROID_API int centroid_sharded_regroup(centroid_sharded* sharded);
/* Writes a checkpoint of this step in the background; with wait it returns when it is on the disk.
 * A failure in the background is that of the next save; regroup and close log it.
 * A disk's error never has the code of a lost rank. */
CENTROID_API int centroid_sharded_save(centroid_sharded* sharded, int wait);
/* The training is complete: ranks that wait or come get CENTROID_CANCELLED from centroid_sharded_open
 * until the last of these closes. Returns when the last checkpoint is on the disk. */
CENTROID_API int centroid_sharded_end(centroid_sharded* sharded);
/* Waits for a checkpoint in progress. Without centroid_sharded_end before, others may go on. */
CENTROID_API void centroid_sharded_close(centroid_sharded* sharded);

/* ---- codecs: numbers in fewer bytes ----------------------------------------------------------- */

typedef struct centroid_codec centroid_codec;

/* Of `count` numbers, with error feedback: what a payload lacks goes with the next one. spec: a codec
 * with feedback, such as "topk:0.01" or "int8:feedback=on", without momentum and clip. */
CENTROID_API int centroid_codec_open(const char* spec, uint64_t count, centroid_codec** codec);
/* Bytes of the longest payload, as many wherever spec and count are the same. */
CENTROID_API uint64_t centroid_codec_room(const centroid_codec* codec);
/* Writes the payload of values + residual, and zeros behind it up to centroid_codec_room bytes. The
 * residual of `count` numbers is the caller's: 0 at first, then what the payload lacks. If a
 * number is not finite and its payload would be too long, all arrive as NaN, and the residual stays
 * as it is; where only values + residual is not finite it becomes 0. */
CENTROID_API int centroid_codec_encode(centroid_codec* codec, const float* values, float* residual,
                                       void* payload, uint64_t* bytes);
/* sum[i] += scale * number i of the payload; with first: = . Zeros may follow it. Sums are undefined
 * after an error. */
CENTROID_API int centroid_codec_decode(const centroid_codec* codec, const void* payload,
                                       uint64_t bytes, float scale, int first, float* sum);
CENTROID_API void centroid_codec_close(centroid_codec* codec);

/* ---- traces: what the program and the library do when ---------------------------------------- */

/* From now on spans and marks go to a file, twice a second, that chrome://tracing, Perfetto and
 * `centroidctl trace --from` read, until centroid_trace_close or the end of the process: the
 * library's (lanes loop and server: what waits, sends, encodes), and the program's own. The file is
 * whole JSON after each write. One a process. process: its name in the picture, NULL: "program".
 * limit_bytes: spans beyond it are left out; 0: 256 MiB. */
CENTROID_API int centroid_trace_open(const char* path, const char* process, uint64_t limit_bytes);
CENTROID_API int centroid_trace_close(void);
/* A span of the calling thread begins, within the one that began last; and the innermost one ends.
 * A lane in which something is called "compute" counts as a device, whose gaps are told. Names
 * have 1 to 64 bytes; at most 255 are told apart. About 100 ns each, also without a file. */
CENTROID_API int centroid_trace_begin(const char* name);
CENTROID_API int centroid_trace_end(void);
/* Something happens now. text: NULL: none; 200 bytes of it are kept. */
CENTROID_API int centroid_trace_mark(const char* name, const char* text);
/* The calling thread's lane (a row of the picture) from now on; else "program", "program 2", ... in
 * the order in which threads begin. One lane is for spans of one thread at a time. */
CENTROID_API int centroid_trace_lane(const char* name);

#ifdef __cplusplus
}
#endif
#endif
