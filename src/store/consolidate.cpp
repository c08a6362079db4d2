#include <fairshard/store/consolidate.h>
#include <fairshard/store/pending_file.h>
#include <fairshard/store/reader.h>

#include <c10/util/Exception.h>

#include <utility>
#include <vector>

namespace fairshard::store {

void consolidate(const std::string& checkpoint, const std::string& file, const std::string& part) {
  Reader reader(checkpoint);
  const std::string prefix = part.empty() ? "" : part + "/";
  std::vector<TensorToWrite> tensors;
  for (const auto& name : reader.names_under(prefix)) {
    const std::string key = prefix + name;
    const Layout& layout = reader.manifest().tensors.at(key).layout;
    tensors.push_back(
        {name, layout.dtype, layout.sizes, [&reader, key] { return reader.read(key); }});
  }
  TORCH_CHECK_VALUE(!tensors.empty(), checkpoint, ": there is nothing to write",
                    part.empty() ? "" : " of part '" + part + "'");
  Metadata metadata{{"format", "pt"}};
  for (const auto& name : reader.value_names_under(prefix)) {
    metadata[name] = reader.value(prefix + name).value_or("null");
  }
  PendingFile pending(file, PendingFile::Existing::kKeep);
  write_safetensors(pending.temporary_path(), tensors, metadata);
  pending.publish();
}

}  // namespace fairshard::store
