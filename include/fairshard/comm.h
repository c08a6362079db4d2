#pragma once
// All of comm/.

#include <fairshard/comm/await_keys.h>
#include <fairshard/comm/backend.h>
#include <fairshard/comm/broadcast_all.h>
#include <fairshard/comm/collectives.h>
#include <fairshard/comm/environment.h>
#include <fairshard/comm/group.h>
#include <fairshard/comm/init.h>
#include <fairshard/comm/interfaces.h>
#include <fairshard/comm/launch.h>
#include <fairshard/comm/link.h>
#include <fairshard/comm/mean.h>
#include <fairshard/comm/mesh.h>
#include <fairshard/comm/probe.h>
#include <fairshard/comm/profiler_range.h>
#include <fairshard/comm/reason.h>
#include <fairshard/comm/run_main.h>
#include <fairshard/comm/waits.h>
#include <fairshard/comm/work.h>
