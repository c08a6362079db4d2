#pragma once
// What `fairshard plan` is asked.

#include "measure.h"
#include "model_shape.h"
#include "predict.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace fairshard::cli::planning {

struct PlanOptions {
  // The model: one of the three
  std::string size = "small";
  std::string path;
  int64_t parameters = 0;
  /// Instead of the size's own; 0: that.
  int64_t layers = 0, width = 0, heads = 0, context = 0;

  Workload workload;
  int64_t slices = 8;
  std::string amp = "both";
  std::vector<std::string> only;  ///< labels of strategies

  // The machine
  std::optional<uint64_t> device_memory;
  std::optional<uint64_t> host_memory;
  double link_gbit = 10;
  double compute_tflops = 50;
  double host_link_gbyte = 25;
  double optimizer_gparam = 50;
  double host_optimizer_gparam = 3;

  bool is_json = false;
  bool measures = false;
  MeasureOptions measuring;

  Machine machine() const;
  ModelShape model() const;
  int64_t context_of(const ModelShape& model) const;
};

/// Gives the command all of its options.
void add_options(CLI::App& command, PlanOptions& options);

}  // namespace fairshard::cli::planning
