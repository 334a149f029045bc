#include "driver/project/new_command.h"

namespace millrace {
namespace {

struct File {
  const char *name, *text;
};
// examples/new_project, as it is there. tests/install builds and runs what `millrace new` makes of it.
// clang-format off
constexpr File kFiles[] = {
    {"CMakeLists.txt",
#include <embedded/examples/new_project/CMakeLists.txt>
    },
    {"model.h",
#include <embedded/examples/new_project/model.h>
    },
    {"model.cpp",
#include <embedded/examples/new_project/model.cpp>
    },
    {"main.cpp",
#include <embedded/examples/new_project/main.cpp>
    },
    {"model_test.cpp",
#include <embedded/examples/new_project/model_test.cpp>
    },
    {"job.yaml",
#include <embedded/examples/new_project/job.yaml>
    },
    {"README.md",
#include <embedded/examples/new_project/README.md>
    },
};
// clang-format on

}  // namespace

std::vector<std::pair<std::string, std::string>> project_files(const std::string& name) {
  const std::string placeholder = "my-model";
  std::vector<std::pair<std::string, std::string>> files;
  for (const auto& [path, text] : kFiles) {
    std::string filled = text;
    for (std::size_t at = 0; (at = filled.find(placeholder, at)) != std::string::npos; at += name.size())
      filled.replace(at, placeholder.size(), name);
    files.emplace_back(path, std::move(filled));
  }
  return files;
}

}  // namespace millrace
