// Runs whole commands in a folder of their own.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "runtime/base/files.h"

namespace millrace {
namespace fs = std::filesystem;

struct Ran {
  int code = -1;
  std::string output;  ///< stdout and stderr

  /// Returns the first line's "evaluation: loss ..."; empty: nothing was evaluated.
  std::string evaluation() const {
    const std::size_t at = output.find("evaluation: loss ");
    return at == std::string::npos ? "" : output.substr(at, output.find('\n', at) - at);
  }
};

class Jobs : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/millrace-jobs-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  void TearDown() override { fs::remove_all(folder_); }

  Ran run(const std::string& arguments, const std::string& environment = "") {
    const std::string log = (folder_ / "log").string();
    const std::string line = "cd " + folder_.string() + " && " + environment +
                             " timeout 300 " MILLRACE_BIN_DIR "/millrace " + arguments + " >" + log + " 2>&1";
    const int status = std::system(line.c_str());
    Ran ran{.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)};
    if (auto text = read_file(log)) ran.output = *text;
    return ran;
  }

  void write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(write_file_atomically(folder_ / name, text));
  }
  std::string bytes(const std::string& name) {
    auto text = read_file(folder_ / name, kGiB);
    return text ? *text : "absent: " + name;
  }

  fs::path folder_;
};

}  // namespace millrace
