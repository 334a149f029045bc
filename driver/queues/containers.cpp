#include "driver/queues/containers.h"

#include <algorithm>
#include <utility>

#include "driver/queues/shell_words.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

using Words = std::vector<std::string>;

/// How a container starts that has the host's network and shared memory.
struct Runtime {
  const char* name;
  Words start;        ///< before everything else
  Words gpus;         ///< where ranks need them: page-locked memory without a limit, too
  const char* mount;  ///< in front of a mount, as one word or as two
  bool mount_is_one_word;
};

const std::vector<Runtime>& runtimes() {
  const Words run = {"run", "--rm", "--interactive", "--network=host", "--ipc=host"};
  static const std::vector<Runtime> table = {
      {"docker", joined({"docker"}, run), {"--ulimit=memlock=-1", "--gpus=all"}, "--volume=", true},
      {"podman",
       joined({"podman"}, run),
       {"--ulimit=memlock=-1", "--device=nvidia.com/gpu=all"},
       "--volume=",
       true},
      {"apptainer", {"apptainer", "exec"}, {"--nv"}, "--bind=", true},
      {"enroot", {"enroot", "start", "--rw"}, {}, "--mount", false},
  };
  return table;
}

}  // namespace

Result<Words> in_container(const Container& container, const std::string& folder, bool with_gpus,
                           Words agent) {
  const auto& all = runtimes();
  const auto runtime =
      std::ranges::find_if(all, [&](const Runtime& r) { return container.runtime == r.name; });
  if (runtime == all.end()) {
    std::string names;
    for (const Runtime& r : all) names += (names.empty() ? "" : ", ") + std::string(r.name);
    return Problem{"container_runtime", "'" + escaped(container.runtime) + "' is unknown", "one of " + names};
  }
  if (container.image.front() == '-')
    return Problem{"container", "'" + escaped(container.image) + "' cannot be an image", {}};
  Words words = runtime->start;
  if (with_gpus) words = joined(std::move(words), runtime->gpus);
  Words mounts = container.mounts;
  mounts.push_back(folder);
  for (const std::string& mount : mounts) {
    if (mount.empty() || mount.front() != '/')
      return Problem{"mounts", "'" + escaped(mount) + "' is no absolute path",
                     "e.g. /data, /data:/inside or /data:/inside:ro"};
    const std::string both = mount.find(':') == std::string::npos ? mount + ":" + mount : mount;
    if (runtime->mount_is_one_word)
      words.push_back(runtime->mount + both);
    else
      words.insert(words.end(), {runtime->mount, both});
  }
  words.push_back(container.image);
  return joined(std::move(words), agent);
}

}  // namespace millrace
