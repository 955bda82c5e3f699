from lib2 import *
b='d/lay'; shutil.rmtree(b,ignore_errors=True); os.makedirs(b+'/src')
p=Psd('--data-dir',b+'/src','--durability','fsync','--keep','2','--checkpoint-deltas','2',shards=2,log=b+'/log')
m=Model(random.Random(1),p); m.conn(); op=C(p.port,role='operator',shard=0xffffffff)
for i in range(3): m.push(30); r=op.admin('checkpoint'); print(r.st,r.body[:100])
m.push(30); p.kill()
for d,_,fs in os.walk(b+'/src'):
    for f in sorted(fs): print(os.path.join(d,f),os.path.getsize(os.path.join(d,f)))
for f in glob.glob(b+'/src/wal*'): print(f,open(f,'rb').read()[:200])
print(open(glob.glob(b+'/src/checkpoints/*/MANIFEST')[0]).read()[:1500])
