#pragma once
// parts/ says what a run consists of, as store/ saves it: names, ranges and dtypes of tensors.
// It knows neither modules nor optimizers, which façades make reachable; see parts.h.
// This header: what one named part of a checkpoint does. Derive from it to save something of your
// own.

#include <fairshard/shard/flat_group.h>
#include <fairshard/store/load_plan.h>
#include <fairshard/store/state.h>

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace fairshard {

/// What the parts of a checkpoint know of each other: an optimizer finds its parameters' names in
/// the modules, and a module its parameters' exact values in the optimizer.
class CheckpointContext {
 public:
  /// Says which name a parameter has, and that it is saved under "part/name". The first one counts.
  void add_parameter(const std::string& part, const std::string& name, const at::Tensor& parameter);
  /// Says that parameters may have master weights here; see shard::Precision.
  void add_shards(const shard::FlatGroup& shards);
  /// Says that a parameter has an exact copy, which all ranks have alike.
  void add_master(const at::Tensor& parameter, const at::Tensor& master);

  /// The name of a parameter in its module, if there is one. The same in two modules: the part and
  /// the name.
  std::optional<std::string> name_of(const at::Tensor& parameter) const;
  /// The key under which its values are saved, if they are.
  std::optional<std::string> key_of(const at::Tensor& parameter) const;
  /// If a parameter has an exact copy, the slices of it that this rank owns.
  const std::vector<shard::Slice>* exact_slices_of(const at::Tensor& parameter) const;
  /// What all ranks have of a parameter, as exactly as they have it.
  at::Tensor master_of(const at::Tensor& parameter) const;

 private:
  struct Place {
    std::string part;
    std::string name;
  };

  std::unordered_map<const c10::TensorImpl*, Place> places_;
  std::unordered_map<std::string, int> uses_;
  std::unordered_map<const c10::TensorImpl*, std::vector<shard::Slice>> exact_;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> masters_;
};

/// Something that is saved and loaded under a name.
class CheckpointPart {
 public:
  virtual ~CheckpointPart() = default;
  /// Called on all parts before any of them is saved or loaded. May wait for what is under way.
  virtual void describe(const std::string& /*name*/, CheckpointContext& /*context*/) {}
  /// Adds what there is to save, under keys that begin with "name/".
  virtual void save(const std::string& name, const CheckpointContext& context,
                    store::State& state) = 0;
  /// Whether its state may be copied to host memory, to be written beside training.
  virtual bool can_copy() const { return true; }
  /// Asks for it again.
  virtual void load(const std::string& name, const CheckpointContext& context,
                    store::LoadPlan& plan) = 0;
};

}  // namespace fairshard
