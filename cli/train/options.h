#pragma once
// cli/train/ is `fairshard train`: options become a strategy, a strategy is stepped, and what
// happens is logged, shown and saved. This header: everything that can be chosen. docs/trainer.md
// describes it.

#include "gpt/model_options.h"
#include <fairshard/models/config.h>

#include <cstdint>
#include <optional>
#include <string>

namespace fairshard::cli::training {

/// A model's folder as Hugging Face's hub has it.
struct HubFolder {
  std::string folder;
  models::ModelConfig config;
  /// Otherwise its config alone, for random ones.
  bool has_weights = false;
};

struct TrainOptions {
  // The text and the model
  /// A file or a folder.
  std::string data;
  /// The folder of a model; empty: the byte-level GPT of these sizes.
  std::string model;
  std::string size = "micro";
  gpt::GptOptions gpt;
  /// What is in `model`, if one is given.
  std::optional<HubFolder> hub;

  // Training
  int64_t steps = 600;
  /// Windows per step, of all ranks together, so that a batch is the same for any number of them.
  int64_t batch = 16;
  /// In how many parts, one after another, a rank computes its share of a batch.
  int64_t accumulate = 1;
  /// The highest learning rate.
  double lr = 1e-3;
  /// "cosine", "wsd", "linear" or "constant": how it falls after a warm-up.
  std::string schedule = "cosine";
  /// Steps in which it rises; a tenth of all, and at most a hundred, if it is not given.
  std::optional<int64_t> warmup;
  /// The last learning rate as a part of the highest.
  double final_lr = 0.1;
  double weight_decay = 0.1;
  /// Parameters of one dimension, norms and biases, do not decay.
  bool decays_matrices_only = false;
  /// The largest norm of the gradients; 0 leaves them.
  double clip = 0;
  uint64_t seed = 0;
  /// Every so many steps the loss of the held-out text is taken; 0: only at the end.
  int64_t validate_every = 0;

  // How the ranks work together
  /// "none", "optimizer" or "gradients".
  std::string shard = "gradients";
  /// "", "bf16" or "fp16".
  std::string amp;
  bool adascale = false;
  bool checkpoint_activation = false;
  bool step_in_backward = false;
  bool overlap_gather = false;
  bool release_parameters = false;

  // A model that is paged through the device
  /// How many slices; 0: all of it is on the device.
  int64_t offload = 0;
  std::optional<uint64_t> device_budget;
  std::optional<uint64_t> host_budget;
  std::string spill_dir;

  // Nodes that train apart
  bool slowmo = false;
  bool diloco = false;
  int nodes = 2;
  int64_t localsgd_frequency = 3;
  int64_t slowmo_frequency = 48;
  std::optional<double> slowmo_momentum;
  std::optional<double> slowmo_lr;
  int fragments = 1;
  int64_t fragment_delay = 0;
  /// "float32", "bfloat16", "int8" or "sparse".
  std::string wire = "float32";

  // Where it runs
  /// Local ranks to start; of no use where a launcher has started them.
  int ranks = 1;
  /// "cpu", "cuda", or "auto" for CUDA where there is some.
  std::string device = "auto";
  /// What moves tensors between ranks; see comm::GroupOptions. Empty: chosen by the device.
  std::string backend;
  /// ATen's threads per rank; 0 shares the machine's cores among its ranks. The same number gives
  /// the same losses, whatever has launched the ranks.
  int threads = 0;
  double timeout_s = 300;

  // What is kept of it
  /// The folder of checkpoints; empty: nothing is saved.
  std::string save;
  int64_t save_every = 100;
  int64_t keep = 3;
  bool resume = false;
  /// The step of the checkpoint to go on from, if not that of the newest.
  std::optional<int64_t> resume_from;
  /// The folder of the trained model, as transformers has it; empty: none is written.
  std::string export_to;
  std::string log;
  std::string trace;
  int64_t trace_steps = 20;

  /// Tokens per window.
  int64_t context() const { return gpt.context(); }
  /// What losses are per.
  const char* token() const { return hub ? "token" : "byte"; }
  /// Whether nodes train apart.
  bool has_nodes() const { return slowmo || diloco; }
  /// All options by their names, as one JSON object, for the log.
  std::string listed = "{}";
};

}  // namespace fairshard::cli::training
