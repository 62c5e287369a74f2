// Approximate functions, for g++.
#pragma once
inline float ex2_approx(float x) { return std::exp2(x); }
inline float rcp_approx(float x) { return 1 / x; }
