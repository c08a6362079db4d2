#pragma once
// The weights of a module from and to safetensors files, those of Hugging Face's hub for instance.

#include <fairshard/module/any_module.h>
#include <fairshard/store/load_plan.h>

#include <torch/arg.h>
#include <torch/nn/module.h>

#include <functional>
#include <string>

namespace fairshard {

/// What load_safetensors() and save_safetensors() are given.
struct SafetensorsOptions {
  // Behaviour
  /// The name in the file of what has this name in the module, where they differ; an empty one: it
  /// is not in the file, as it is with one of the names of tied parameters.
  TORCH_ARG(std::function<std::string(const std::string& name)>, name_in_file);
  /// When loading, names that are missing or too many are an error; otherwise they are reported.
  TORCH_ARG(bool, strict) = true;
  /// When saving, more than this goes to several files and an index of them; 0: one file.
  TORCH_ARG(int64_t, max_file_bytes) = 0;
};

/// Fills a module's parameters and buffers from a safetensors file, an index of several
/// ("model.safetensors.index.json"), or a folder with one of these. They keep their dtypes and
/// devices. Of tied parameters the file has one at least. What is missing, unexpected, of other
/// sizes or of another kind is named, by its name in the file, before anything has changed. Local:
/// every rank reads; to go to other ranks from one, wrap the module after that. With an OSS whose
/// parameters are on their way, call its wait_for_parameters() first.
/// @{
store::LoadReport load_safetensors(torch::nn::Module& module, const std::string& path,
                                   const SafetensorsOptions& options = {});
template <AnyModule Module>
store::LoadReport load_safetensors(const Module& module, const std::string& path,
                                   const SafetensorsOptions& options = {}) {
  return load_safetensors(module_of(module), path, options);
}
/// @}

/// Writes a module's parameters and buffers, on whatever devices they are, to a file that
/// safetensors' own libraries read; tied parameters once, under the first of their names. Refuses
/// to replace a file. Local: one rank calls it.
/// @{
void save_safetensors(const torch::nn::Module& module, const std::string& file,
                      const SafetensorsOptions& options = {});
template <AnyModule Module>
void save_safetensors(const Module& module, const std::string& file,
                      const SafetensorsOptions& options = {}) {
  save_safetensors(static_cast<const torch::nn::Module&>(module_of(module)), file, options);
}
/// @}

}  // namespace fairshard
