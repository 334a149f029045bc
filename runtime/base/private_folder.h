// Folders that only their owner may enter.
#pragma once

#include <filesystem>

#include "runtime/base/result.h"

namespace millrace {

/// Creates the folder as make_writable_folder() does (files.h). A created folder is accessible to its owner
/// only, whatever the umask. An existing folder is unchanged. In a parent that belongs to another user (a
/// container's root writing for the user outside), the folder gets the usual permissions.
Status make_private_folder(const std::filesystem::path& path);

}  // namespace millrace
