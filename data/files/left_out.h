// Counts, by reason, the files and records that a reader of a data set skips, so that none is lost silently.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

/// Counts files, records and others that a reader leaves out. Not thread-safe.
class LeftOut {
 public:
  /// Counts one more. `reason` is a plural, such as "files that are not images". `name` says which one.
  void add(std::string_view reason, std::string name);
  std::int64_t count() const;  ///< returns the sum over all reasons
  /// Returns a sentence for each reason, in the order in which they first occurred:
  /// "left out: 5 files that are not images: a.txt, b.txt, c.txt and 2 more".
  std::vector<std::string> notes() const;

 private:
  struct Group {
    std::string reason;
    std::int64_t count = 0;
    std::vector<std::string> first;  ///< names, as many as a note shows
  };
  std::vector<Group> groups_;
};

/// The file that `millrace data generate` writes next to its data.
inline constexpr std::string_view kDatasetManifest = "millrace-dataset.json";

/// Returns why no file or folder of this name is data: it is hidden, or macOS added it to an archive
/// ("__MACOSX", "._x.jpg"). Empty: its name does not say that.
std::string_view reason_to_ignore(std::string_view name);

}  // namespace millrace
