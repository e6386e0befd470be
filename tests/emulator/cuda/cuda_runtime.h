// The runtime as device sources see it.
#pragma once

#include "../language.hpp"
