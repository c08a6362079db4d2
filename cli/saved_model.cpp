#include "saved_model.h"

#include <fairshard/store/reader.h>
#include <fairshard/store/state.h>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <charconv>
#include <utility>
#include <vector>

namespace fairshard::cli {
namespace {

std::vector<std::pair<std::string, int64_t*>> named_sizes_of(gpt::GptOptions& options) {
  return {{"gpt/vocabulary", &options.vocabulary()},
          {"gpt/layers", &options.layers()},
          {"gpt/width", &options.width()},
          {"gpt/heads", &options.heads()},
          {"gpt/context", &options.context()}};
}

int64_t read_size(const store::Reader& reader, const std::string& key) {
  constexpr int64_t kMostPlausible = int64_t{1} << 24;
  const std::string text = reader.value(key).value_or("");
  int64_t size = 0;
  const auto* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, size);
  TORCH_CHECK_VALUE(
      error == std::errc() && stop == end && size > 0 && size <= kMostPlausible, reader.directory(),
      ": the value ", key, " is '", text,
      "', but must be the size of a model: is this a checkpoint of `fairshard train`?");
  return size;
}

}  // namespace

void add_model(Checkpoint& checkpoint, SavedModel& model) {
  if (!model.config.empty()) {
    checkpoint.add(kHubConfig, &model.config).add(kHubFolder, &model.folder);
    return;
  }
  for (const auto& [name, size] : named_sizes_of(model.gpt)) {
    checkpoint.add(name, size);
  }
}

gpt::Gpt load_gpt(const std::string& folder) {
  store::Reader reader(folder);
  const std::string node = store::node_prefix(0);
  const std::string prefix = reader.value(node + "gpt/layers") ? node : "";
  gpt::GptOptions options;
  for (const auto& [name, size] : named_sizes_of(options)) {
    *size = read_size(reader, prefix + name);
  }
  gpt::Gpt model(options);
  const at::NoGradGuard no_grad;
  for (const auto& item : model->named_parameters()) {
    const at::Tensor values = reader.read(c10::str(prefix, "model/", item.key()));
    TORCH_CHECK_VALUE(values.sizes() == item.value().sizes(), folder, ": ", item.key(), " is ",
                      values.sizes(), ", but must be ", item.value().sizes());
    item.value().copy_(values);
  }
  return model;
}

}  // namespace fairshard::cli
