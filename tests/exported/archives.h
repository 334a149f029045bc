// Archives made by the reference Python, kept between runs as long as the script that makes them is the same.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "data/files/zip.h"
#include "runtime/base/files.h"

namespace millrace {

/// Empty: there is no reference Python, and the test is to be skipped.
inline std::string reference_python() {
  const char* python = std::getenv("MILLRACE_REFERENCE_PYTHON");
  return python ? python : "";
}

inline int run_reference(const std::string& arguments, const std::string& log) {
  const std::string script = std::string(MILLRACE_SOURCE_DIR) + "/tests/reference/export_models.py";
  const std::string line = "HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 " + reference_python() + " " + script + " " +
                           arguments + " >" + log + " 2>&1";
  return std::system(line.c_str());
}

/// The folder with NAME.pt2 and, but for those with dropout, NAME.step.safetensors.
inline std::filesystem::path folder_with(const std::string& name) {
  namespace fs = std::filesystem;
  const fs::path source = MILLRACE_SOURCE_DIR;
  std::uint32_t crc = 0;
  for (const char* file : {"tests/reference/export_models.py", "tests/reference/requirements.txt"}) {
    const auto text = read_file(source / file);
    crc = crc32_of(text ? *text : "", crc);
  }
  // Kernels for other instructions round otherwise: gradients of ResNet-50 differ by 1e-3.
  for (const char* mask : {"ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS"})
    if (const char* value = std::getenv(mask)) crc = crc32_of(value, crc);
  const char *cache = std::getenv("MILLRACE_CACHE"), *home = std::getenv("HOME");
  const fs::path base = cache ? fs::path(cache) : fs::path(home ? home : "/tmp") / ".cache/millrace";
  const fs::path folder = base / "exported-models" / std::to_string(crc);
  fs::create_directories(folder);
  if (!fs::exists(folder / (name + ".pt2"))) {
    const std::string log = (folder / (name + ".log")).string();
    const int status = run_reference(folder.string() + " " + name, log);
    const auto text = read_file(log);
    EXPECT_EQ(status, 0) << (text ? *text : "");
  }
  return folder;
}

#define MILLRACE_NEEDS_REFERENCE() \
  if (reference_python().empty()) GTEST_SKIP() << "set MILLRACE_REFERENCE_PYTHON (tests/reference/install)"

}  // namespace millrace
