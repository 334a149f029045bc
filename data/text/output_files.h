// Output files that appear together, when all of them are whole.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/unfinished_file.h"

namespace millrace {

enum class Existing;

/// Output files with temporary names until `publish`. Without `publish`, the destructor or a signal that ends
/// the process removes them. Throws ConfigError: an output that exists and must not be replaced, that is also
/// an input or another output, or whose folder cannot be written.
class OutputFiles {
 public:
  OutputFiles(std::vector<std::string> paths, const std::vector<std::string>& inputs, Existing existing);
  OutputFiles(const OutputFiles&) = delete;
  OutputFiles& operator=(const OutputFiles&) = delete;
  ~OutputFiles();
  std::size_t size() const { return paths_.size(); }
  /// Returns the temporary path to write output `i` to.
  const std::string& temporary(std::size_t i) const { return temporary_[i]; }
  /// Renames all files to their final names.
  void publish();

 private:
  std::vector<std::string> paths_, temporary_;
  std::vector<UnfinishedFile> unfinished_;
  Existing existing_;
};

}  // namespace millrace
