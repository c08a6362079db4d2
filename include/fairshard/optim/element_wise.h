#pragma once
// Which optimizers may be given parts of tensors.

#include <fairshard/shard/optimizer_names.h>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <type_traits>

namespace fairshard {

/// Whether the step of an optimizer class treats every element by itself, so that slices of
/// parameters train as whole ones do. Others (LAMB, Muon, ...) are given whole tensors. Specialise
/// it for a class of your own.
template <typename Optimizer>
struct IsElementWise : std::false_type {};

template <>
struct IsElementWise<torch::optim::Adagrad>
    : std::bool_constant<shard::is_element_wise("Adagrad")> {};
template <>
struct IsElementWise<torch::optim::Adam> : std::bool_constant<shard::is_element_wise("Adam")> {};
template <>
struct IsElementWise<torch::optim::AdamW> : std::bool_constant<shard::is_element_wise("AdamW")> {};
template <>
struct IsElementWise<torch::optim::RMSprop>
    : std::bool_constant<shard::is_element_wise("RMSprop")> {};
template <>
struct IsElementWise<torch::optim::SGD> : std::bool_constant<shard::is_element_wise("SGD")> {};

}  // namespace fairshard
