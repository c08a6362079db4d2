#pragma once
// What torch's optimizers are like, by the names that their classes have in Python and in C++.

#include <algorithm>
#include <array>
#include <string_view>

namespace fairshard::shard {

/// Whether the step of a class treats every element by itself, so that slices of parameters train
/// as whole ones do.
constexpr bool is_element_wise(std::string_view name) {
  constexpr std::array<std::string_view, 11> kNames = {"ASGD",    "Adadelta", "Adagrad", "Adam",
                                                       "AdamW",   "Adamax",   "NAdam",   "RAdam",
                                                       "RMSprop", "Rprop",    "SGD"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

/// Whether steps of a class are about as long whatever the size of the gradients.
constexpr bool is_adam_like(std::string_view name) {
  constexpr std::array<std::string_view, 5> kNames = {"Adam", "AdamW", "Adamax", "NAdam", "RAdam"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

}  // namespace fairshard::shard
