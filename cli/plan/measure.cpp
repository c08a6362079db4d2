#include "measure.h"

#include "../report/run_log.h"
#include <fairshard/comm/temporary_folder.h>

#include <c10/util/Exception.h>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace fairshard::cli::planning {
namespace {

std::string last_words(const std::string& file) {
  std::ifstream stream(file);
  std::string last;
  for (std::string line; std::getline(stream, line);) {
    last = line.empty() ? last : line;
  }
  return last;
}

/// Runs this program with other arguments; what it says goes into a file.
void run_self(std::vector<std::string> arguments, const std::string& output) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  arguments.insert(arguments.begin(), program);
  std::vector<char*> pointers;
  for (auto& argument : arguments) {
    pointers.push_back(argument.data());
  }
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_APPEND,
                                   0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t child = 0;
  const int error =
      posix_spawn(&child, program.c_str(), &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  TORCH_CHECK(error == 0, "cannot start ", program, ": ", std::strerror(error));
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  TORCH_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0,
              "the training that was to be measured failed: ", last_words(output));
}

int64_t bytes_of(const report::RankMemory& memory, const char* kind) {
  const auto found = memory.bytes.find(kind);
  return found == memory.bytes.end() ? 0 : static_cast<int64_t>(found->second);
}

MemoryPrediction memory_of(const report::RankMemory& log) {
  MemoryPrediction memory;
  memory.weights = bytes_of(log, "weights");
  memory.gradients = bytes_of(log, "gradients");
  memory.optimizer = bytes_of(log, "optimizer");
  memory.buckets = bytes_of(log, "buckets");
  memory.host = bytes_of(log, "host_weights") + bytes_of(log, "host_optimizer");
  memory.peak = static_cast<int64_t>(log.peak_bytes);
  const int64_t named = memory.weights + memory.gradients + memory.optimizer + memory.buckets;
  memory.activations = std::max<int64_t>(memory.peak - named, 0);
  return memory;
}

/// Means over the second half, when everything is warm.
Measurement measured(const report::RunLog& log) {
  Measurement result;
  TORCH_CHECK(!log.steps.empty() && !log.memory.empty(), log.file,
              ": the training has logged no steps or no memory");
  for (const auto& [rank, memory] : log.memory) {
    if (static_cast<int64_t>(memory.peak_bytes) > result.memory.peak) {
      result.memory = memory_of(memory);
    }
  }
  const size_t first = log.steps.size() / 2;
  const auto count = static_cast<double>(log.steps.size() - first);
  double sent = 0;
  for (size_t i = first; i < log.steps.size(); ++i) {
    sent += log.steps[i].sent_bytes / count;
    for (const auto& [kind, seconds] : log.steps[i].split_s) {
      result.time.step_s += seconds / count;
      result.time.compute_s += kind == "compute" ? seconds / count : 0;
      result.time.link_s += kind == "link" ? seconds / count : 0;
      result.time.optimizer_s += kind == "optimizer" ? seconds / count : 0;
    }
  }
  result.sent_bytes = static_cast<int64_t>(sent);
  return result;
}

}  // namespace

std::vector<std::string> train_options(const ModelShape& model, const Strategy& strategy,
                                       const Workload& workload) {
  std::vector<std::string> options;
  const auto add = [&](const std::string& name, const auto& value) {
    std::ostringstream text;
    text << value;
    options.insert(options.end(), {"--" + name, text.str()});
  };
  if (model.gpt) {
    add("layers", model.gpt->layers());
    add("width", model.gpt->width());
    add("heads", model.gpt->heads());
    add("context", model.gpt->context());
  } else {
    add("model", model.hub.value().folder);
    add("context", model.window());
  }
  add("batch", workload.batch);
  add("ranks", workload.ranks);
  add("shard", strategy.sharding == Sharding::kNone        ? "none"
               : strategy.sharding == Sharding::kOptimizer ? "optimizer"
                                                           : "gradients");
  if (strategy.slices > 0) {
    add("offload", strategy.slices);
  }
  if (strategy.is_mixed) {
    add("amp", "bf16");
  }
  if (strategy.recomputes) {
    options.push_back("--checkpoint-activation");
  }
  return options;
}

Measurement measure(const ModelShape& model, const Strategy& strategy, const Workload& workload,
                    const MeasureOptions& options) {
  const comm::TemporaryFolder folder;
  const std::string log = folder.file("run.jsonl");
  std::vector<std::string> arguments{"train"};
  const auto own = train_options(model, strategy, workload);
  arguments.insert(arguments.end(), own.begin(), own.end());
  arguments.insert(arguments.end(),
                   {"--steps", std::to_string(options.steps), "--device", options.device,
                    "--threads", std::to_string(options.threads), "--log", log});
  if (!options.data.empty()) {
    arguments.insert(arguments.end(), {"--data", options.data});
  }
  run_self(std::move(arguments), folder.file("output"));
  return measured(report::read_run_log(log));
}

}  // namespace fairshard::cli::planning
