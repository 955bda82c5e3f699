"""zodd.py: zstd bodies of odd structure in PUSH (joined) and PULL (joined, reader). What is applied must be the content; all else refused."""
from psc import *
import psc; _x=psc._x
p=Psd(); c=C(p.port); c.join(job='z',inc=1); t=c.table('t',dim=1).n(3)
n=1000; body=bytes([1])*n+struct.pack('<%df'%n,*[1.]*n); small=bytes([1])*n
def raw(content,blocks,fcs=True,single=True,checksum=False,dictid=None,window=None,fcsval=None,fcsbytes=8):
    """hand-made frame of raw/RLE blocks"""
    d=struct.pack('<I',0xFD2FB528); fl={1:0,2:1,4:2,8:3}[fcsbytes] if fcs else 0
    desc=fl<<6|(1<<5 if single else 0)|(4 if checksum else 0)|({None:0,1:1,2:2,4:3}[len(dictid) if dictid is not None else None])
    d+=bytes([desc]); 
    if not single: d+=bytes([window if window is not None else 0x60])
    if dictid is not None: d+=dictid
    v=len(content) if fcsval is None else fcsval
    if fcs: d+=(struct.pack('<H',v-256) if fcsbytes==2 else v.to_bytes(fcsbytes,'little'))
    d+=blocks
    if checksum: d+=struct.pack('<I',XX64(content)&0xffffffff)
    return d
_x.XXH64.restype=ctypes.c_uint64; _x.XXH64.argtypes=[ctypes.c_char_p,ctypes.c_size_t,ctypes.c_ulonglong]
def XX64(b): return _x.XXH64(b,len(b),0)
def bl(last,typ,size,data): return (last|typ<<1|size<<3).to_bytes(3,'little')+data
RAW=lambda b,last=1: bl(last,0,len(b),b)
SK=lambda m,b: struct.pack('<II',0x184D2A50+m,len(b))+b
one=b''.join(bl(0,0,1,body[i:i+1]) for i in range(len(body)))+bl(1,0,0,b'')
empties=b''.join(bl(0,0,0,b'') for _ in range(200000))+RAW(body)
cases=[('good',zc(body),1),('raw block',raw(body,RAW(body)),1),('1-byte blocks',raw(body,one),1),('200k empty blocks',raw(body,empties),1),('rle+raw',raw(body,bl(0,1,n,b'\1')+RAW(body[n:])),1),
('no content size',raw(body,RAW(body),fcs=False,single=False),0),('content size 0',raw(body,RAW(body),fcsval=0),0),('size+1',raw(body,RAW(body),fcsval=len(body)+1),0),('size-1',raw(body,RAW(body),fcsval=len(body)-1),0),
('checksum',raw(body,RAW(body),checksum=True),1),('bad checksum',raw(body,RAW(body),checksum=True)[:-1]+b'\0',0),('dict id 0 (1 byte)',raw(body,RAW(body),dictid=b'\0'),'any'),('dict id 77',raw(body,RAW(body),dictid=b'\x4d'),0),('dict id 4 bytes',raw(body,RAW(body),dictid=b'\1\2\3\4'),0),
('two frames',zc(body[:n])+zc(body[n:]),0),('frame+empty frame',zc(body)+raw(b'',bl(1,0,0,b'')),0),('skippable first',SK(0,b'abc')+zc(body),0),('skippable last',zc(body)+SK(3,b''),0),('only skippable',SK(0,bytes(5000)),0),('trailing byte',zc(body)+b'\0',0),('cut',zc(body)[:-1],0),('window 2^41',raw(body,RAW(body),single=False,window=0xff),'any'),('window 128M',raw(body,RAW(body),single=False,window=17<<3),'any'),('window 1K',raw(body,RAW(body),single=False,window=0),'any'),
('reserved block',raw(body,bl(1,3,len(body),body)),0),('no last block',raw(body,RAW(body,0)),0),('rle 2^21-1',raw(body,bl(1,1,2**21-1,b'\1')),0),('block beyond 128K',raw(bytes(300000),RAW(bytes(300000))),0),('reserved bit',bytearray(raw(body,RAW(body))),0),('unused bit',bytearray(raw(body,RAW(body))),'any'),('magic v0.7',b'\x27\xb5\x2f\xfd'+zc(body)[4:],0),('legacy 0.5',b'\x25\xb5\x2f\xfd'+zc(body)[4:],0),('huge fcs',raw(body,RAW(body),fcsval=2**63),0),('empty',b'',0),('4 bytes',b'\x28\xb5\x2f\xfd',0)]
seq=0; exp=0.; faults=0
for name,z,ok in cases:
    if name=='reserved bit': z[4]|=8
    if name=='unused bit': z[4]|=16
    z=bytes(z); seq+=1; T=time.time()
    try: r=c.call(PUSH,push_head(seq,seq-1,1,1,[section(t,nk=n,kb=n,vb=4*n)]),z,1)
    except Closed: r=None; c=C(p.port); j=c.join(job='z',inc=1); t=c.table('t',dim=1).n(3)
    el=time.time()-T; st=r.st if r else 'closed'
    if st==0: exp-=1
    else:
        r3=c.call(PUSH,push_head(seq,seq-1,1,1,[])); 
        if r3.n(7): print('used up',name)
    v=c.pull(t,[1,500,1000],seq,dim=1).rows
    bad=(ok==1 and st!=0) or (ok==0 and st==0) or any(x!=(exp,) for x in v)
    rp=[]
    for role in ('reader',):
        q=C(p.port,role=role)
        try: x=q.call(PULL,pull_head(0,0,[section(t,nk=n,kb=n)]),z,1); rp.append(x.st)
        except Closed: rp.append('closed')
        q.close()
    faults+=bad; print(name,len(z),'st',st,r.text[:60] if r else '','%.3fs'%el,'row',v[0],'FAULT' if bad else '','reader pull (wrong length by design)',rp)
say('zodd cases',len(cases),'faults',faults,'alive',p.alive(),p.stop())
