#pragma once
// ProcessGroupGloo.hpp includes this file but uses nothing of it.
