#pragma once

// The core is one shared library with hidden visibility; what an extension uses is marked.
#define RDMATX_API __attribute__((visibility("default")))
