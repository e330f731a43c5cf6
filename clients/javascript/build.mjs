/** Joins src/*.js to gateway-client.js, the one file that pages copy; with --dist, also makes what the package has beside. */
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const PARTS = ["head", "types", "storage", "session", "queue", "client", "requests", "answers", "ids"];
const BROWSERS = ["chrome102", "firefox115", "safari15"];
/** What minified builds export: of the sources also what tests and gateway-analytics.js need. */
const PUBLIC = {
  "gateway-client": "Client, QueueFullError, VERSION",
  "gateway-analytics": "Analytics, Client, itemStorage, ksuid, QueueFullError, VERSION",
};
/** Properties that neither applications nor the gateway nor a storage see. */
const INTERNAL = /^(_.*|fate|kind|isGateway|isLast|letters|moved|refusals|retryAfterMs|sentBefore|since|toldAt)$/;
const TYPES = "--allowJs --checkJs --strict --declaration --emitDeclarationOnly --outDir dist --target es2022".split(" ");

const here = (name) => fileURLToPath(new URL(name, import.meta.url));
const text = PARTS.map((name) => readFileSync(here(`src/${name}.js`), "utf8")).join("\n");
writeFileSync(here("gateway-client.js"), text);

if (process.argv.includes("--dist")) {
  const { buildSync } = await import("esbuild");
  const { minify } = await import("terser");
  const build = (name, options) => {
    const { outputFiles } = buildSync({ ...(options.stdin ? {} : { entryPoints: [here(`${name}.js`)] }), bundle: true, target: BROWSERS, write: false, ...options });
    return outputFiles[0].text;
  };
  mkdirSync(here("dist"), { recursive: true });
  for (const [name, names] of Object.entries(PUBLIC)) {
    writeFileSync(here(`dist/${name}.cjs`), build(name, { format: "cjs" }));
    const contents = `export { ${names} } from "./${name}.js";`;
    const small = { stdin: { contents, resolveDir: here(".") }, minify: true, mangleProps: INTERNAL };
    for (const [kind, options] of [["min", { format: "esm" }], ["iife", { format: "iife", globalName: "gateway" }]]) {
      const { code } = await minify(build(name, { ...small, ...options }), { module: kind === "min", ecma: 2020, compress: { passes: 3 } });
      writeFileSync(here(`dist/${name}.${kind}.js`), code);
    }
  }
  writeFileSync(here("dist/node-storage.cjs"), build("node-storage", { format: "cjs", platform: "node", target: "node20" }));
  const sources = ["gateway-client.js", "gateway-analytics.js", "node-storage.js"].map(here);
  const tsc = here("node_modules/typescript/bin/tsc");
  const options = ["--lib", "es2022,dom,dom.iterable", "--module", "nodenext", "--types", "node", "--skipLibCheck", "--strictPropertyInitialization", "false"];
  execFileSync(process.execPath, [tsc, ...TYPES, ...options, ...sources], { cwd: here("."), stdio: "inherit" });
}
