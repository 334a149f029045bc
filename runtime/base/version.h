// The version that --version and results name.
#pragma once

#ifndef MILLRACE_VERSION
#define MILLRACE_VERSION "0.1.0"
#endif
