#include "gain_value.h"

#include "../store/json.h"

#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include <vector>

namespace fairshard {

using store::Json;

std::string gain_to_json(const scale::GainMeter& meter) {
  const auto [means, effective_steps] = meter.state();
  const at::Tensor values = means.cpu().contiguous();
  Json rows = Json::array();
  for (int64_t row = 0; row < values.size(0); ++row) {
    const auto* const first = values.const_data_ptr<double>() + row * values.size(1);
    rows.push_back(std::vector<double>(first, first + values.size(1)));
  }
  const Json json{{"means", rows}, {"effective_steps", effective_steps.item<double>()}};
  return store::dump_json(json, "AdaScale");
}

void gain_from_json(scale::GainMeter& meter, const std::string& text, const std::string& key) {
  try {
    const Json json = store::parse_json(text, key);
    std::vector<double> means;
    for (const auto& row : json.at("means")) {
      for (const auto& value : row) {
        means.push_back(value.get<double>());
      }
    }
    const auto rows = static_cast<int64_t>(json.at("means").size());
    TORCH_CHECK_VALUE(rows == 3 && means.size() % 3 == 0, key, ": ", rows,
                      " rows of means, but there must be 3 of one length");
    meter.load(at::tensor(means, at::kDouble).view({rows, -1}),
               at::scalar_tensor(json.at("effective_steps").get<double>(), at::kDouble));
  } catch (const Json::exception& error) {
    TORCH_CHECK_VALUE(false, key, ": not the state of an AdaScale (", error.what(), ")");
  }
}

}  // namespace fairshard
