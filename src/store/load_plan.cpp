#include <fairshard/store/load_plan.h>
#include <fairshard/store/state.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>

#include <utility>

namespace fairshard::store {
namespace {

/// More than this many names tell nothing new.
constexpr size_t kNamesInMessage = 20;

std::string listed(const char* title, const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < kNamesInMessage; ++i) {
    text += (i == 0 ? std::string("\n  ") + title + ": " : ", ") + names[i];
  }
  if (names.size() > kNamesInMessage) {
    text += c10::str(" and ", names.size() - kNamesInMessage, " more");
  }
  return text;
}

}  // namespace

LoadPlan::LoadPlan(Reader& reader, int rank, int ranks)
    : reader_(reader), rank_(rank), ranks_(ranks) {}

void LoadPlan::add_part(const std::string& part) { parts_.push_back(part); }

bool LoadPlan::expects(const std::string& key) {
  expected_.insert(key);
  return reader_.has(key) || reader_.value(key);
}

void LoadPlan::expects_under(const std::string& prefix) {
  for (const auto& name : reader_.names_under(prefix)) {
    expected_.insert(prefix + name);
  }
  for (const auto& name : reader_.value_names_under(prefix)) {
    expected_.insert(prefix + name);
  }
}

void LoadPlan::add_range(const std::string& key, const Layout& layout, int64_t begin, int64_t end,
                         Take take) {
  expected_.insert(key);
  if (!reader_.has(key)) {
    missing_.push_back(key);
    return;
  }
  const Layout& stored = reader_.manifest().tensors.at(key).layout;
  if (!stored.has_sizes_of(layout)) {
    misfits_.push_back(c10::str(key, " has sizes ", c10::IntArrayRef(stored.sizes), " instead of ",
                                c10::IntArrayRef(layout.sizes)));
    return;
  }
  requests_.push_back({[this, key, layout, begin, end] { reader_.check(key, layout, begin, end); },
                       [this, key, layout, begin, end, take = std::move(take)] {
                         take(reader_.read(key, layout, begin, end));
                       }});
}

void LoadPlan::add_tensor(const std::string& key, const at::Tensor& target) {
  const bool is_dense = target.is_non_overlapping_and_dense();
  Layout layout = layout_of(target);
  if (!is_dense) {
    layout.strides = row_major(layout.sizes);
  }
  add_range(key, layout, 0, target.numel(), [target, layout](const at::Tensor& values) {
    target.copy_(values.as_strided(layout.sizes, layout.strides));
  });
}

void LoadPlan::add_any(const std::string& key, Take take) {
  expected_.insert(key);
  if (!reader_.has(key)) {
    missing_.push_back(key);
    return;
  }
  const Layout& stored = reader_.manifest().tensors.at(key).layout;
  requests_.push_back({[this, key, stored] { reader_.check(key, stored, 0, stored.numel()); },
                       [this, key, take = std::move(take)] { take(reader_.read(key)); }});
}

void LoadPlan::add_optional_value(const std::string& key, TakeValue take) {
  expected_.insert(key);
  if (const auto json = reader_.value(key)) {
    requests_.push_back({[] {}, [json, take = std::move(take)] { take(*json); }});
  }
}

void LoadPlan::add_value(const std::string& key, TakeValue take) {
  if (!reader_.value(key)) {
    expected_.insert(key);
    missing_.push_back(key);
    return;
  }
  add_optional_value(key, std::move(take));
}

void LoadPlan::then(std::function<void()> action) { actions_.push_back(std::move(action)); }

LoadReport LoadPlan::compare() const {
  LoadReport report;
  report.step = reader_.manifest().step;
  report.missing = missing_;
  const auto look_at = [&](const std::string& key) {
    for (const auto& part : parts_) {
      if (key == part || key.rfind(part + "/", 0) == 0) {
        if (expected_.count(key) == 0) {
          report.unexpected.push_back(key);
        }
        return;
      }
    }
  };
  for (const auto& [key, entry] : reader_.manifest().tensors) {
    look_at(key);
  }
  for (const auto& [key, value] : reader_.manifest().values) {
    look_at(key);
  }
  return report;
}

LoadReport LoadPlan::check(bool strict) {
  LoadReport report = compare();
  const bool fits =
      misfits_.empty() && (!strict || (report.missing.empty() && report.unexpected.empty()));
  TORCH_CHECK_VALUE(fits, reader_.directory(), " does not fit:", listed("missing", report.missing),
                    listed("unexpected", report.unexpected), listed("of other sizes", misfits_),
                    misfits_.empty() ? "\n  strict=false goes on without them" : "");
  for (const auto& request : requests_) {
    request.check();
  }
  return report;
}

void LoadPlan::take() {
  const at::NoGradGuard no_grad;
  for (const auto& request : requests_) {
    request.take();
  }
}

void LoadPlan::finish() {
  const at::NoGradGuard no_grad;
  for (const auto& action : actions_) {
    action();
  }
}

LoadReport LoadPlan::run(bool strict) {
  LoadReport report = check(strict);
  take();
  finish();
  return report;
}

}  // namespace fairshard::store
