/** Joins src/*.js to gateway-client.js, the one file that pages copy; with --dist, also makes what the package has beside. */
import { execFileSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const PARTS = ["head", "types", "client", "requests", "answers", "queue", "session", "storage", "ids"];
const BROWSERS = ["chrome102", "firefox115", "safari15"];
const TYPES = "--allowJs --checkJs --strict --declaration --emitDeclarationOnly --outDir dist --target es2022".split(" ");

const here = (name) => fileURLToPath(new URL(name, import.meta.url));
const text = PARTS.map((name) => readFileSync(here(`src/${name}.js`), "utf8")).join("\n");
writeFileSync(here("gateway-client.js"), text);

if (process.argv.includes("--dist")) {
  const { buildSync } = await import("esbuild");
  const build = (name, out, options) =>
    buildSync({ entryPoints: [here(`${name}.js`)], outfile: here(`dist/${out}`), bundle: true, target: BROWSERS, ...options });
  for (const name of ["gateway-client", "gateway-analytics"]) {
    build(name, `${name}.cjs`, { format: "cjs" });
    build(name, `${name}.min.js`, { format: "esm", minify: true });
    build(name, `${name}.iife.js`, { format: "iife", minify: true, globalName: "gateway" });
  }
  build("node-storage", "node-storage.cjs", { format: "cjs", platform: "node", target: "node20" });
  const sources = ["gateway-client.js", "gateway-analytics.js", "node-storage.js"].map(here);
  const tsc = here("node_modules/typescript/bin/tsc");
  const options = ["--lib", "es2022,dom,dom.iterable", "--module", "nodenext", "--types", "node", "--skipLibCheck"];
  execFileSync(process.execPath, [tsc, ...TYPES, ...options, ...sources], { cwd: here("."), stdio: "inherit" });
}
