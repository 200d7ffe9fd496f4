BEGIN TRANSACTION;
CREATE TABLE perfharness_baseline (
	name VARCHAR(200) NOT NULL, 
	saved_unix_ns BIGINT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "perfharness_baseline" VALUES('main',1767225600000000000);
CREATE TABLE perfharness_baseline_run (
	name VARCHAR(200) NOT NULL, 
	run_id VARCHAR(200) NOT NULL, 
	position INTEGER NOT NULL, 
	PRIMARY KEY (name, run_id), 
	FOREIGN KEY(name) REFERENCES perfharness_baseline (name) ON DELETE CASCADE, 
	FOREIGN KEY(run_id) REFERENCES perfharness_run (run_id)
);
INSERT INTO "perfharness_baseline_run" VALUES('main','20260101T000000-00000001',0);
CREATE TABLE perfharness_document (
	run_id VARCHAR(200) NOT NULL, 
	name VARCHAR(300) NOT NULL, 
	content BLOB NOT NULL, 
	PRIMARY KEY (run_id, name), 
	FOREIGN KEY(run_id) REFERENCES perfharness_run (run_id) ON DELETE CASCADE
);
INSERT INTO "perfharness_document" VALUES('20260101T000000-00000001','manifest.json',X'789CABAE0500017500F9');
CREATE TABLE perfharness_figure (
	run_id VARCHAR(200) NOT NULL, 
	path TEXT NOT NULL, 
	metric VARCHAR(100) NOT NULL, 
	unit VARCHAR(20) NOT NULL, 
	count BIGINT, 
	mean FLOAT, 
	p50 FLOAT, 
	p95 FLOAT, 
	reason TEXT, 
	PRIMARY KEY (run_id, path, metric), 
	FOREIGN KEY(run_id) REFERENCES perfharness_run (run_id) ON DELETE CASCADE
);
INSERT INTO "perfharness_figure" VALUES('20260101T000000-00000001','rec/batch','cpu_time','ms',10,10.5,10.0,NULL,NULL);
INSERT INTO "perfharness_figure" VALUES('20260101T000000-00000001','','items_per_second','items/s',NULL,NULL,NULL,NULL,'too few batches');
INSERT INTO "perfharness_figure" VALUES('20260102T000000-00000002','rec/batch','cpu_time','ms',10,10.25,9.75,NULL,NULL);
INSERT INTO "perfharness_figure" VALUES('20260102T000000-00000002','','items_per_second','items/s',NULL,NULL,NULL,NULL,'too few batches');
CREATE TABLE perfharness_run (
	run_id VARCHAR(200) NOT NULL, 
	kind VARCHAR(20) NOT NULL, 
	series_id VARCHAR(200), 
	position INTEGER, 
	folder TEXT NOT NULL, 
	created VARCHAR(40) NOT NULL, 
	created_unix_ns BIGINT NOT NULL, 
	command JSON NOT NULL, 
	script TEXT NOT NULL, 
	script_path TEXT, 
	script_arguments JSON NOT NULL, 
	setup VARCHAR(64) NOT NULL, 
	setup_facts JSON NOT NULL, 
	environment JSON NOT NULL, 
	git_commit VARCHAR(64), 
	git_dirty BOOLEAN, 
	num_processes INTEGER, 
	processes_ok INTEGER, 
	exit_code INTEGER NOT NULL, 
	errors INTEGER NOT NULL, 
	warnings INTEGER NOT NULL, 
	notes INTEGER NOT NULL, 
	PRIMARY KEY (run_id), 
	FOREIGN KEY(series_id) REFERENCES perfharness_run (run_id) ON DELETE CASCADE
);
INSERT INTO "perfharness_run" VALUES('20260101T000000-00000001','launch',NULL,NULL,'/runs/out','2026-01-01T00:00:00+00:00',1767225600000000000,'["perfharness", "launch", "pipeline.py"]','pipeline.py','/src/pipeline.py','[]','0123456789abcdef','{"script": "pipeline.py"}','{"hostname": "box", "gpus": []}','4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a',1,1,1,0,0,0,0);
INSERT INTO "perfharness_run" VALUES('20260102T000000-00000002','launch','20260103T000000-00000003',0,'/runs/out','2026-01-02T00:00:00+00:00',1767312000000000000,'["perfharness", "launch", "pipeline.py"]','pipeline.py','/src/pipeline.py','[]','0123456789abcdef','{"script": "pipeline.py"}','{"hostname": "box", "gpus": []}',NULL,NULL,1,1,0,0,2,0);
INSERT INTO "perfharness_run" VALUES('20260103T000000-00000003','sweep',NULL,NULL,'/runs/out','2026-01-02T00:00:10+00:00',1767312010000000000,'["perfharness", "launch", "pipeline.py"]','pipeline.py','/src/pipeline.py','[]','0123456789abcdef','{"script": "pipeline.py"}','{"hostname": "box", "gpus": []}',NULL,NULL,1,1,0,0,0,0);
CREATE TABLE perfharness_schema (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT perfharness_schema_pkc PRIMARY KEY (version_num)
);
INSERT INTO "perfharness_schema" VALUES('0002');
CREATE TABLE perfharness_tag (
	run_id VARCHAR(200) NOT NULL, 
	tag VARCHAR(200) NOT NULL, 
	PRIMARY KEY (run_id, tag), 
	FOREIGN KEY(run_id) REFERENCES perfharness_run (run_id) ON DELETE CASCADE
);
INSERT INTO "perfharness_tag" VALUES('20260101T000000-00000001','nightly');
CREATE INDEX perfharness_run_created ON perfharness_run (created_unix_ns);
CREATE INDEX perfharness_run_series ON perfharness_run (series_id);
CREATE INDEX perfharness_figure_of ON perfharness_figure (path, metric);
COMMIT;
