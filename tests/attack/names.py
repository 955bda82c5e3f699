"""Names, texts, extremes: deterministic small checks on asan psd."""
from psc import *
p=Psd('--lease','3s',bin='BUILD',log='BUILD')
def tryhello(name,role='worker',shard=0,token='',**k):
    try: c=C(p.port,name=name,role=role,shard=shard,token=token,**k); c.close(); return 'ok'
    except Refused as e: return 'st%d %s'%(e.st,e.text)
    except Closed as e: return 'closed'
for n in [b'a'*63,b'a'*64,b'\0',b'a\0b',b'\x1b[31m',b'\xff','é'.encode()*31+b'a','é'.encode()*32,'\u0085'.encode(),'\u0080'.encode(),b'\x7f',b'\xc0\x80',b'\xed\xa0\x80','\u202e'.encode(),'\U0010ffff'.encode(),b'\xf4\x90\x80\x80']:
    print('hello name',n[:12],len(n),tryhello(n))
for r in ['worker','workerworkerwor','workerworkerwork','','Worker']: print('role',r,tryhello('a',role=r))
for t in [b'a'*127,b'a'*128,b'\xff\xfe\n',b'a\0b']: print('token',t[:6],len(t),tryhello('a',token=t))
for sh in [0,1,1023,2**31,2**32-2,2**32-1]: print('shard',sh,tryhello('a',shard=sh))
for v in [(0,0),(0,1),(1,0),(2,1),(2,3),(0,2**32-1),(2**32-1,2**32-1)]: print('ver',v,tryhello('a',vmin=v[0],vmax=v[1]))
print('mapid wrong',tryhello('a',mapid=5))
def j(**k):
    c=C(p.port)
    try: return repr(c.join(**k))
    except Closed: return 'closed'
    finally: c.close()
for i in [0,1,2**62-1,2**62,2**63-1,2**63,2**64-1]: print('inc',i,j(job='i%d'%i,inc=i))
for i in [0,1,2**53-1,2**53,2**53+1,2**63,2**64-1]: print('clock',i,j(job='c%d'%i,clock=i)); print('acked',i,j(job='a%d'%i,acked=i))
for n,r in [(0,0),(1,1),(1,0),(1024,1023),(1024,1024),(1025,0),(2**32-1,0)]: print('n,rank',n,r,j(job='n%dr%d'%(n,r),n=n,rank=r))
for m,b in [(0,0),(1,5),(2,0),(2,2**32-1),(3,0),(3,7),(4,0)]: print('mode,bound',m,b,j(job='m%db%d'%(m,b),mode=m,bound=b))
for n in [b'',b'j'*127,b'j'*128,b'j\n',b'j j','\u0085'.encode(),b'\xff',b'a/b',b'..',b'\xe2\x80\xae']: print('job',n[:6],len(n),j(job=n))
# clock jumps
c=C(p.port); print(c.join(job='jump',inc=5)); t=c.table('tj'); tid=t.n(3)
seq=0
for ck in [2**53-1,2**53,2**53+1,2**53+65536,2**60,2**64-1]:
    seq+=1; r=c.push(tid,[1],[(1,1)],seq,ck); print('push clock',ck,r); 
    print(' pull clock',ck,c.pull(tid,[1],ck,100))
    if r.st and '%d is next'%seq in r.text: seq-=1
for u in [0,1,2**53,2**64-1]: print('pull unfinished',u,c.call(PULL,pull_head(5,0,[section(tid,nk=0)],u)))
for d in [2**32-1,1]: print('deadline',c.call(PULL,pull_head(5,d,[section(tid,nk=0)])))
print('seq max',c.push(tid,[1],[(1,1)],2**64-1,0),c.push(tid,[1],[(1,1)],2**63,0))
# gradients
c.close(); c=C(p.port); c.join(job='grad',inc=5); t=c.table('tg'); tid=t.n(3); seq=0
for g in [1e15,1.0001e15,-1e16,3e38,-3e38,float('inf'),float('-inf'),float('nan'),1e-45]:
    seq+=1; r=c.push(tid,[1],[(g,1)],seq,0); print('grad',g,r); 
print(c.pull(tid,[1],0).rows)
for g in [3e38,1e20]: seq+=1; print('assign',g,c.push(tid,[1],[(g,1)],seq,0,op=1)); print(c.pull(tid,[1],0).rows)
for g in [1e15]*3: seq+=1; r=c.push(tid,[1],[(g,1)],seq,0)
print(c.pull(tid,[1],0).rows)
seq+=1; print('assign inf',c.push(tid,[1],[(float('inf'),1)],seq,0,op=1))
# overflow: assign 3.4e38 then lr big
t=c.table('tbig',lr=3e38); print(t); 
for g in (1e15,1e15): seq+=1; r=c.push(t.n(3),[1],[(g,g)],seq,0); print('lr3e38*1e15',r.st,c.pull(t.n(3),[1],0).rows)
# table names
for n in [b'a'*127,b'a'*128,b'a b',b'a\x7f',b'a\xc3\xa9',b'../x',b'a"b\\c',b'<script>',b'/',b'']: r=c.call(TABLE,fb(1,spec(n)));print('table',n[:8],len(n),r.st,r.text)
for kw in [dict(dim=0),dict(dim=16384),dict(dim=16385),dict(kind=1,n_floats=2**40,dim=16384),dict(kind=1,n_floats=2**40+1),dict(kind=1,n_floats=0),dict(kind=2),dict(optim=6),dict(lr=float('nan')),dict(lr=-1.0),dict(lr=float('inf'))]: r=c.table('x'+str(hash(str(kw))),**kw);print('spec',kw,r.st,r.text)
# operators
o=C(p.port,role='operator',shard=0xffffffff)
for cmd,arg in [('status','x'*255),('status','x'*256),('x'*31,''),('x'*32,''),('row',''),('row','1'),('row','1 tg'),('row','-1 tg'),('row','18446744073709551616 tg'),('row','1 '+'a'*250),('row','1  tg'),('drop',''),('drop','nojob'),('set','a b'),('set','grad lr=nan'),('set','grad lr=-1'),('set',' '),('set','grad '),('set','grad ='),('set','grad lr='),('drop','grad'),('checkpoint','')]:
    r=o.admin(cmd,arg); print('admin',cmd,arg[:20],r.st,r.text,r.body[:120])
for cmd in ('status','tables','workers','why','stats'):
    r=o.admin(cmd); json.loads(r.body.decode('utf8','strict')); print(cmd,'json ok',len(r.body))
import urllib.request
for u in ('/stats','/metrics','/','/healthz'):
    x=urllib.request.urlopen('http://127.0.0.1:%d%s'%(p.hport,u)).read(); print(u,len(x),'<script>' in x.decode() and x.decode().count('<script>'), b'\x1b' in x)
print(subprocess.run([BIN+'/psctl','tables','--server','127.0.0.1:%d'%p.port],capture_output=True).stdout[-300:])
print('alive',p.alive(),'stop',p.stop()); print(open(p.log).read().count('AddressSan'))
print(sum(1 for ch in open(p.log,'rb').read() if ch<32 and ch!=10))
