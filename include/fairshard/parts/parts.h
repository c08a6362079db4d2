#pragma once
// The parts of most runs. What they consist of, and under which keys, is said here once; a façade
// says by callables how its modules and optimizers are reached.

#include <fairshard/outer/synchroniser.h>
#include <fairshard/parts/part.h>
#include <fairshard/scale/gain_meter.h>
#include <fairshard/shard/sharded_step.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace fairshard::parts {

/// A tensor, or anything else as JSON text.
using Value = std::variant<at::Tensor, std::string>;

/// Something that a module has, under its name.
struct ModuleItem {
  std::string name;
  Value value;
  /// All ranks have parameters alike; of the rest, rank 0's is saved.
  bool is_parameter = false;
};

/// How a module is reached.
struct ModuleAccess {
  std::function<std::vector<ModuleItem>()> items;
  /// Returns when its values are in place; may be empty.
  std::function<void()> wait;
  /// Takes what is JSON, by name; may be empty. Tensors are filled in place.
  std::function<void(const std::map<std::string, std::string>& values)> set_values;
  /// Whether it may be copied to host memory, to be written beside training.
  bool can_copy = true;
};

/// The state that an optimizer has for a parameter, by Python's names of its fields.
using StateFields = std::map<std::string, Value>;

/// A parameter group.
struct OptimizerGroup {
  /// A JSON object.
  std::string options;
  std::vector<at::Tensor> parameters;
  /// For those that no module of the checkpoint names.
  std::vector<std::string> names;
};

/// How an optimizer is reached. What it steps are its parameters, or, if it is sharded, the slices
/// of them that this rank owns. The last four may be empty.
struct OptimizerAccess {
  std::function<std::vector<OptimizerGroup>()> groups;
  std::function<StateFields(const at::Tensor& stepped)> state;
  /// Takes the options of all groups: a JSON array with an object for each.
  std::function<void(const std::string& json)> set_options;
  /// Takes all states in place of those that it has.
  std::function<void(const std::vector<std::pair<at::Tensor, StateFields>>& states)> set_states;
  /// The fields without which a state is of no use.
  std::function<std::vector<std::string>(const at::Tensor& stepped)> required;
  /// If the fields of its class are known: whether it has one of this name. All but "step" then
  /// have an element for each of the parameter's.
  std::function<bool(const std::string& field)> knows;
  /// Whether it steps a float32 copy of a parameter, and that copy, if it is up to date. It is
  /// saved as the parameter's values, and loaded as the field "master".
  std::function<bool(const at::Tensor& parameter)> has_master;
  std::function<at::Tensor(const at::Tensor& parameter)> master;
  std::shared_ptr<shard::ShardedStep> sharded;
  /// Of an AdaScale.
  std::function<std::shared_ptr<scale::GainMeter>()> meter;
};

/// A value as JSON, in which {"tensor": key} stands for the tensor under that key.
struct Tree {
  std::string json;
  std::map<std::string, at::Tensor> tensors;
};

/// Each under the part's name; `key` is that of the value.
using GetTree = std::function<Tree(const std::string& key)>;
using SetTree = std::function<void(const std::string& key, const Tree& tree)>;

using Part = std::shared_ptr<CheckpointPart>;

Part make_module_part(ModuleAccess access);
Part make_optimizer_part(OptimizerAccess access);
/// What a rank keeps of nodes that train apart.
Part make_outer_part(std::shared_ptr<outer::Synchroniser> synchroniser);
/// The default generators of the CPU and of the GPUs in use, of each rank.
Part make_rng_part();
/// A tensor that all ranks have alike.
Part make_tensor_part(at::Tensor tensor);
/// Something of which rank 0's is saved.
Part make_value_part(GetTree get, SetTree set);
/// Parts under "name/key", which may be others each time.
Part make_group_part(std::function<std::vector<std::pair<std::string, Part>>()> list);

}  // namespace fairshard::parts
