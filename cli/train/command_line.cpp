#include "command_line.h"

#include "../plain_file.h"
#include "../validators.h"
#include "check.h"
#include "gpt/sizes.h"
#include "model_choice.h"
#include "outputs.h"
#include <fairshard/store/directory.h>

#include <CLI/CLI.hpp>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <string>

namespace fairshard::cli::training {
namespace {

constexpr int64_t kMaxLocalRanks = 256;
constexpr int64_t kMaxThreads = 1024;

CLI::Option* add_bytes(CLI::App& app, const std::string& name, std::optional<uint64_t>& value,
                       const std::string& help) {
  return app.add_option(name, value, help + ", for instance 4GiB")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->type_name("BYTES");
}

void add_model_options(CLI::App& app, TrainOptions& options) {
  options.data = FAIRSHARD_DEFAULT_DATA;
  app.add_option("--data", options.data,
                 "text to train on: a file, or a folder of source and text files; or with --model "
                 "a .safetensors file of tokens")
      ->check(CLI::ExistingPath);
  app.add_option("--model", options.model,
                 "folder of a model to train: config.json, and weights unless they are to begin "
                 "random")
      ->check(CLI::ExistingDirectory);
  std::vector<std::string> names;
  for (const auto& size : gpt::named_sizes()) {
    names.push_back(size.name);
  }
  app.add_option("--size", options.size, "the model by its name; single dimensions go first")
      ->check(CLI::IsMember(names));
  app.add_option("--context", options.gpt.context(), "bytes or tokens per window")
      ->check(whole_number(1));
  app.add_option("--layers", options.gpt.layers(), "blocks of the model")->check(whole_number(1));
  app.add_option("--width", options.gpt.width(), "features per byte, a multiple of --heads")
      ->check(whole_number(1));
  app.add_option("--heads", options.gpt.heads(), "attention heads")->check(whole_number(1));
}

void add_training_options(CLI::App& app, TrainOptions& options) {
  app.add_option("--steps", options.steps, "steps to train for, in all")->check(whole_number(1));
  app.add_option("--batch", options.batch, "windows per step, of all ranks together")
      ->check(whole_number(1));
  app.add_option("--accumulate", options.accumulate,
                 "parts in which a rank computes its share of a batch, one after another")
      ->check(whole_number(1));
  app.add_option("--lr", options.lr, "highest learning rate")->check(number_from(0, false));
  app.add_option("--schedule", options.schedule,
                 "how the learning rate falls after its warm-up: along a cosine, in the last fifth "
                 "of the steps (wsd), in a line, or not at all")
      ->check(CLI::IsMember({"cosine", "wsd", "linear", "constant"}));
  app.add_option("--warmup", options.warmup,
                 "steps in which the learning rate rises; without it a tenth, at most 100")
      ->check(whole_number(0));
  app.add_option("--final-lr", options.final_lr, "part of the highest learning rate that is left")
      ->check(number_from(0, true));
  app.add_option("--weight-decay", options.weight_decay, "of AdamW")->check(number_from(0, true));
  app.add_flag("--decay-matrices-only", options.decays_matrices_only,
               "norms and biases do not decay");
  app.add_option("--clip", options.clip, "largest norm of the gradients; 0 leaves them")
      ->check(number_from(0, true));
  app.add_option("--seed", options.seed, "of the first weights and of the order of the text")
      ->check(whole_number(0, std::numeric_limits<int64_t>::max()));
  app.add_option("--validate-every", options.validate_every,
                 "steps between losses of held-out text; 0: only at the end")
      ->check(whole_number(0));
}

void add_strategy_options(CLI::App& app, TrainOptions& options) {
  app.add_option("--shard", options.shard,
                 "what each rank holds only its share of: none, the optimizer's state, or that and "
                 "the gradients")
      ->check(CLI::IsMember({"none", "optimizer", "gradients"}));
  app.add_option("--amp", options.amp, "mixed precision; fp16 with a grad scaler")
      ->check(CLI::IsMember({"bf16", "fp16"}));
  app.add_flag("--adascale", options.adascale,
               "learning rates follow what a batch of --ranks x --accumulate parts is worth");
  app.add_flag("--checkpoint-activation", options.checkpoint_activation,
               "compute activations again in backward instead of keeping them");
  app.add_flag("--step-in-backward", options.step_in_backward,
               "step every bucket of gradients as soon as it is reduced, and keep none");
  app.add_flag("--overlap-gather", options.overlap_gather,
               "gather stepped parameters while the next forward runs");
  app.add_flag("--release-parameters", options.release_parameters,
               "keep only a share of a block's parameters between its forward and its backward; "
               "with --overlap-gather also between steps");
  app.add_option("--offload", options.offload,
                 "page the model through the device in so many slices; 0 does not")
      ->check(whole_number(0));
  add_bytes(app, "--device-budget", options.device_budget, "device memory for --offload's weights");
  add_bytes(app, "--host-budget", options.host_budget,
            "host memory for --offload's weights and gradients");
  app.add_option("--spill-dir", options.spill_dir, "folder for what is beyond --host-budget")
      ->check(CLI::ExistingDirectory);
}

void add_node_options(CLI::App& app, TrainOptions& options) {
  app.add_flag("--slowmo", options.slowmo,
               "nodes train apart, average every few steps, and slow momentum follows");
  app.add_flag("--diloco", options.diloco,
               "nodes train apart, and Nesterov's momentum brings them together now and then");
  app.add_option("--nodes", options.nodes, "nodes of equal size that the ranks make up")
      ->check(whole_number(1, kMaxSize));
  app.add_option("--localsgd-frequency", options.localsgd_frequency,
                 "steps from average to average (--slowmo)")
      ->check(whole_number(1));
  app.add_option("--slowmo-frequency", options.slowmo_frequency,
                 "steps from one step of the outer optimizer to the next")
      ->check(whole_number(1));
  app.add_option(
         "--slowmo-momentum", options.slowmo_momentum,
         "of the outer optimizer; without it what suits the number of nodes, or DiLoCo's 0.9")
      ->check(number_from(0, true, 1));
  app.add_option("--slowmo-lr", options.slowmo_lr,
                 "of the outer optimizer; without it 1, or DiLoCo's 0.7")
      ->check(number_from(0, false));
  app.add_option("--fragments", options.fragments,
                 "parts of the model that take turns in travelling")
      ->check(whole_number(1, kMaxSize));
  app.add_option("--fragment-delay", options.fragment_delay,
                 "steps that a fragment may travel before it is taken in")
      ->check(whole_number(0));
  app.add_option("--wire", options.wire, "precision of what travels between nodes ")
      ->check(CLI::IsMember({"float32", "bfloat16", "int8", "sparse"}));
}

void add_rank_options(CLI::App& app, TrainOptions& options) {
  app.add_option("--ranks", options.ranks,
                 "local ranks to start; torchrun, mpirun or srun choose their own number")
      ->check(whole_number(1, kMaxLocalRanks));
  app.add_option("--device", options.device, "auto is cuda where there is a GPU, else cpu")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app.add_option(
         "--backend", options.backend,
         "what moves tensors between ranks, if not cpu:fairshard,cuda:nccl where every rank "
         "has a GPU of its own, and else fairshard, through host memory")
      ->check(CLI::IsMember({"fairshard", "nccl", "cpu:fairshard,cuda:nccl"}));
  app.add_option("--threads", options.threads,
                 "threads per rank; 0 shares the cores among the ranks")
      ->check(whole_number(0, kMaxThreads));
  app.add_option("--timeout-s", options.timeout_s, "longest wait for another rank, in seconds")
      ->check(number_from(0, false));
}

void add_output_options(CLI::App& app, TrainOptions& options) {
  app.add_option("--save", options.save, "folder for checkpoints; without it nothing is saved");
  app.add_option("--save-every", options.save_every,
                 "steps between checkpoints; 0: only at the end")
      ->check(whole_number(0));
  app.add_option("--keep", options.keep, "newest checkpoints that are kept; 0 keeps all")
      ->check(whole_number(0));
  app.add_flag("--resume", options.resume,
               "go on from the newest checkpoint in --save, if there is one, with any ranks");
  app.add_option("--resume-from", options.resume_from,
                 "go on from the checkpoint of this step in --save, though there may be later ones")
      ->check(whole_number(0));
  app.add_option("--export", options.export_to,
                 "folder for the trained model of --model, as transformers keeps models, made of "
                 "the last checkpoint");
  app.add_option("--log", options.log, "JSON lines of all steps, for `fairshard report`");
  app.add_option("--trace", options.trace,
                 "timeline of the first steps, for Perfetto or chrome://tracing");
  app.add_option("--trace-steps", options.trace_steps, "steps that --trace records")
      ->check(whole_number(1));
}

/// What was given or is the default, with the types that JSON has.
nlohmann::json value_of(const CLI::Option& option) {
  const bool is_flag = option.get_expected_max() == 0;
  if (is_flag) {
    return option.count() > 0 && option.as<bool>();
  }
  const std::string text = option.count() > 0 ? option.results().back() : option.get_default_str();
  if (text.empty()) {
    return nullptr;
  }
  const auto number = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  return number.is_number() ? number : nlohmann::json(text);
}

}  // namespace

TrainCommandLine::TrainCommandLine(CLI::App& command, TrainOptions& options)
    : command_(command), options_(options) {
  command.option_defaults()->always_capture_default();
  add_model_options(command, options);
  add_training_options(command, options);
  add_strategy_options(command, options);
  add_node_options(command, options);
  add_rank_options(command, options);
  add_output_options(command, options);
  command
      .add_option("--config", config_,
                  "a file with lines such as steps = 100; what is given here goes first")
      ->check(CLI::ExistingPath);
}

/// CLI11 reads such files for a whole program, not for one of its commands.
void TrainCommandLine::read_config() {
  if (config_.empty()) {
    return;
  }
  require_plain_file(config_);
  const auto formatter = command_.get_config_formatter();
  for (const CLI::ConfigItem& item : formatter->from_file(config_)) {
    CLI::Option* const option = command_.get_option_no_throw("--" + item.name);
    if (!option || item.name == "config" || item.name == "help" || !item.parents.empty()) {
      throw CLI::ConfigError(c10::str(config_, ": there is no option '", item.fullname(), "'"));
    }
    if (option->count() == 0) {
      const bool is_flag = option->get_expected_min() == 0;
      option->add_result(is_flag ? std::vector{formatter->to_flag(item)} : item.inputs);
      option->run_callback();
    }
  }
}

void TrainCommandLine::finish() {
  read_config();
  const auto is_given = [&](const std::string& name) { return command_.count(name) > 0; };
  if (const auto refusal = choose_model(options_, is_given)) {
    throw CLI::ValidationError(refusal->option, refusal->reason);
  }
  const auto environment = comm::read_environment();
  const bool has_launcher = environment.origin != "none";
  if (has_launcher && is_given("--ranks") && options_.ranks != environment.world_size) {
    throw CLI::ValidationError("--ranks",
                               c10::str(options_.ranks, " contradicts ", environment.origin,
                                        ", which has started ", environment.world_size));
  }
  options_.ranks = has_launcher ? environment.world_size : options_.ranks;
  if (options_.data.empty()) {
    throw CLI::RequiredError("--data");
  }
  if (const auto refusal = find_contradiction(options_, is_given, options_.ranks)) {
    throw CLI::ValidationError(refusal->option, refusal->reason);
  }
  // Only the first rank writes, and its machine's folders are meant.
  if (const auto refusal = environment.rank == 0 ? prepare_outputs(options_) : std::nullopt) {
    throw CLI::ValidationError(refusal->option, refusal->reason);
  }
  if (options_.resume_from) {
    options_.resume = true;
    check_resume_from();
  }
  if (!options_.save.empty() && !options_.resume && store::latest_checkpoint(options_.save)) {
    throw CLI::ValidationError("--save",
                               c10::str(*store::latest_checkpoint(options_.save),
                                        " exists: --resume goes on from it, or choose another "
                                        "folder"));
  }
  if (options_.has_nodes() && !is_given("--shard")) {
    options_.shard = "none";
  }
  list_options();
}

/// Rather than after all ranks have started.
void TrainCommandLine::check_resume_from() const {
  const auto steps = store::list_checkpoints(options_.save);
  if (std::find(steps.begin(), steps.end(), *options_.resume_from) == steps.end()) {
    throw CLI::ValidationError(
        "--resume-from",
        c10::str("there is no complete checkpoint of step ", *options_.resume_from, " in ",
                 options_.save, steps.empty() ? "" : "; there are: ", c10::Join(", ", steps)));
  }
}

/// As they are meant: sizes that a name stands for, and the ranks that there are.
void TrainCommandLine::list_options() {
  nlohmann::json listed;
  for (const CLI::Option* const option : command_.get_options()) {
    const std::string name = option->get_single_name();
    if (name != "help" && name != "config") {
      listed[name] = value_of(*option);
    }
  }
  if (!options_.hub) {
    listed["layers"] = options_.gpt.layers();
    listed["width"] = options_.gpt.width();
    listed["heads"] = options_.gpt.heads();
  }
  listed["context"] = options_.gpt.context();
  listed["shard"] = options_.shard;
  listed["ranks"] = options_.ranks;
  options_.listed = listed.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace fairshard::cli::training
