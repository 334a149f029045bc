// Output files that appear together, when all of them are whole.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/unfinished_file.h"

namespace millrace {

enum class Existing;

/// Throws ConfigError: an output that exists and is not to be replaced, that is an input or another output
/// too, or whose folder cannot be written. Until `publish` the files have other names, which the destructor
/// removes, and so does a signal that ends the process.
class OutputFiles {
 public:
  OutputFiles(std::vector<std::string> paths, const std::vector<std::string>& inputs, Existing existing);
  OutputFiles(const OutputFiles&) = delete;
  OutputFiles& operator=(const OutputFiles&) = delete;
  ~OutputFiles();
  std::size_t size() const { return paths_.size(); }
  /// Returns the temporary path to write output `i` to.
  const std::string& temporary(std::size_t i) const { return temporary_[i]; }
  /// Gives all of them their names.
  void publish();

 private:
  std::vector<std::string> paths_, temporary_;
  std::vector<UnfinishedFile> unfinished_;
  Existing existing_;
};

}  // namespace millrace
