#pragma once
// Which optimizers may be given parts of tensors.

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace fairshard {

/// Whether the step of an optimizer class treats every element by itself, so that slices of
/// parameters train as whole ones do. Others (LAMB, Muon, ...) are given whole tensors. Specialise
/// it for a class of your own.
template <typename Optimizer>
inline constexpr bool is_element_wise = false;

template <>
inline constexpr bool is_element_wise<torch::optim::Adagrad> = true;
template <>
inline constexpr bool is_element_wise<torch::optim::Adam> = true;
template <>
inline constexpr bool is_element_wise<torch::optim::AdamW> = true;
template <>
inline constexpr bool is_element_wise<torch::optim::RMSprop> = true;
template <>
inline constexpr bool is_element_wise<torch::optim::SGD> = true;

}  // namespace fairshard
