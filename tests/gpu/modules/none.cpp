// A library that is no module.
extern "C" int something_else() { return 1; }
