// One rank of benchmarks/sharded_training.py in C++: the same work, flags and figures as rank.py.
#include "gpt.h"
#include <fairshard/comm/collectives.h>
#include <fairshard/comm/init.h>
#include <fairshard/nn/sharded_data_parallel.h>
#include <fairshard/optim/fused.h>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <map>
#include <thread>

namespace {

using fairshard::DataParallelMode;
using fairshard::OssBase;
using Flags = std::map<std::string, std::string>;

/// --name=value, as the harness writes them.
Flags read_flags(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto equals = word.find('=');
    TORCH_CHECK_VALUE(word.starts_with("--") && equals != std::string::npos, "'", word,
                      "' is not of the form --name=value");
    flags[word.substr(2, equals - 2)] = word.substr(equals + 1);
  }
  return flags;
}

DataParallelMode mode_of(const std::string& system) {
  if (system == "cpp-replicated") {
    return DataParallelMode::kReplicated;
  }
  TORCH_CHECK_VALUE(
      system == "cpp-optimizer" || system == "cpp-gradients" || system == "cpp-in-backward",
      "--system is '", system,
      "', but must be cpp-replicated, cpp-optimizer, cpp-gradients or cpp-in-backward");
  return system == "cpp-optimizer" ? DataParallelMode::kOptimizer : DataParallelMode::kGradients;
}

/// A line of /proc/self/status, in bytes.
int64_t status_bytes(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key + ":")) {
      return 1024 * std::stoll(line.substr(key.size() + 1));
    }
  }
  TORCH_CHECK(false, "/proc/self/status has no ", key);
}

int64_t sent_bytes(const std::string& interface) {
  int64_t bytes = 0;
  std::ifstream("/sys/class/net/" + interface + "/statistics/tx_bytes") >> bytes;
  return bytes;
}

fairshard::comm::Group meet(const Flags& flags) {
  fairshard::comm::Environment environment;
  environment.rank = std::stoi(flags.at("rank"));
  environment.world_size = std::stoi(flags.at("ranks"));
  // Ranks at two ends of a link are as on two machines, though they meet in one file.
  const bool is_one_machine = flags.at("interface") == "lo";
  environment.local_rank = is_one_machine ? environment.rank : 0;
  environment.local_world_size = is_one_machine ? environment.world_size : 1;
  environment.store_file = flags.at("folder") + "/store";
  return fairshard::comm::init_process_group(environment);
}

/// The model with its optimizer, whichever the mode wants.
struct Training {
  Training(const fairshard::comm::Group& group, const bench::Gpt& model, DataParallelMode mode,
           const fairshard::OssOptions& oss)
      : whole(mode == DataParallelMode::kReplicated
                  ? std::make_unique<fairshard::AdamW>(model->parameters(), options())
                  : nullptr),
        sharded(whole ? nullptr
                      : std::make_unique<fairshard::OSS<fairshard::AdamW>>(group, *model, options(),
                                                                           oss)),
        parallel(group, model,
                 sharded ? std::vector<std::reference_wrapper<OssBase>>{*sharded}
                         : std::vector<std::reference_wrapper<OssBase>>(),
                 fairshard::DataParallelOptions().mode(mode)) {}

  /// Those of Python's AdamW.
  static torch::optim::AdamWOptions options() { return torch::optim::AdamWOptions(1e-4); }

  at::Tensor train(const at::Tensor& text) {
    parallel.zero_grad();
    const at::Tensor loss = parallel.forward(text);
    loss.backward();
    whole ? whole->step() : sharded->step();
    return loss;
  }

  std::unique_ptr<fairshard::AdamW> whole;
  std::unique_ptr<fairshard::OSS<fairshard::AdamW>> sharded;
  fairshard::ShardedDataParallel<bench::Gpt> parallel;
};

void reset_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

/// Has everything started that any training needs, so that it does not count as ours.
void warm_up() {
  torch::nn::Linear model(8, 8);
  fairshard::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-4));
  model(torch::ones({2, 8})).sum().backward();
  optimizer.step();
}

void run(const Flags& flags) {
  if (flags.at("purpose") == "memory") {
    mallopt(M_MMAP_THRESHOLD, 64 << 10);  // freed blocks go back to the system at once
  }
  const int ranks = std::stoi(flags.at("ranks"));
  at::set_num_threads(std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / ranks));
  const auto group = meet(flags);
  const fairshard::store::SafetensorsFile file(flags.at("model"));
  const auto model = bench::load_gpt(file);
  const at::Tensor text = file.read("text." + flags.at("rank"));
  int64_t parameters = 0;
  for (const auto& parameter : model->parameters()) {
    parameters += parameter.numel();
  }
  warm_up();
  malloc_trim(0);
  const int64_t bare = status_bytes("VmRSS");
  reset_peak();

  const std::string& system = flags.at("system");
  Training training(group, model, mode_of(system),
                    fairshard::OssOptions().step_in_backward(system == "cpp-in-backward"));
  const int warmup = std::stoi(flags.at("warmup"));
  const int steps = std::stoi(flags.at("steps"));
  const std::string& interface = flags.at("interface");
  std::vector<double> times;
  int64_t sent = 0;
  int64_t first_peak = 0;
  at::Tensor loss;
  for (int step = 0; step < warmup + steps; ++step) {
    if (step == warmup) {
      fairshard::comm::barrier(group);
      sent = sent_bytes(interface);
      first_peak = status_bytes("VmHWM");
      reset_peak();
    }
    const auto start = std::chrono::steady_clock::now();
    loss = training.train(text);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (step >= warmup) {
      times.push_back(seconds.count());
    }
  }
  const int64_t later_peak = status_bytes("VmHWM");
  fairshard::comm::barrier(group);
  std::ofstream(flags.at("folder") + "/" + flags.at("rank") + ".json")
      << "{\"parameters\": " << parameters << ", \"times\": [" << c10::Join(", ", times)
      << "], \"sent\": " << (sent_bytes(interface) - sent) / steps << ", \"bare\": " << bare
      << ", \"peak\": " << std::max(first_peak, later_peak) << ", \"later_peak\": " << later_peak
      << ", \"loss\": " << loss.item<float>() << "}\n";
  fairshard::comm::barrier(group);
}

}  // namespace

int main(int argc, char** argv) try {
  run(read_flags(argc, argv));
} catch (const std::exception& error) {
  std::cerr << error.what() << std::endl;
  return 1;
}
