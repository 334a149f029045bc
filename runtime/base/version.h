// The version of millrace, as reported by --version, results and the installed package.
#pragma once

#define MILLRACE_VERSION_MAJOR 0
#define MILLRACE_VERSION_MINOR 1
#define MILLRACE_VERSION_PATCH 0
/// "0.1.0". While the first number is 0, the public interface may change with the second.
#define MILLRACE_VERSION "0.1.0"
